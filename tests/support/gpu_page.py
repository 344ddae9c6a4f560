"""A page of dcgm-exporter for tests."""

_GPU = 'gpu="{0}",UUID="GPU-{0}",device="nvidia{0}",modelName="NVIDIA H200",Hostname="node-1"'
_FIELDS = (
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", 97),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", 41),
    ("DCGM_FI_DEV_FB_USED", "gauge", 120_000),
    ("DCGM_FI_DEV_FB_FREE", "gauge", 23_000),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", 771),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", 61),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", 512.5),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", 0),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", 123_456_789),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", 0),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", 0.31),
)
DCGM_PAGE = "".join(
    f"# TYPE {name} {kind}\n" + "".join(f"{name}{{{_GPU.format(gpu)}}} {value}\n" for gpu in (0, 1))
    for name, kind, value in _FIELDS
)
"""Two GPUs as dcgm-exporter prints them by default, in part."""
