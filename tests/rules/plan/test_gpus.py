import pytest

from rules.plan.gpus import find_product, needed_format


@pytest.mark.parametrize(
    ("printed", "capability"),
    [
        ("NVIDIA A100-SXM4-80GB", 8.0),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 8.0),
        ("NVIDIA A10", 8.6),
        ("NVIDIA A10G", 8.6),
        ("Tesla V100-SXM2-16GB", 7.0),
        ("Tesla T4", 7.5),
        ("Quadro RTX 6000", 7.5),
        ("NVIDIA RTX 6000 Ada Generation", 8.9),
        ("NVIDIA RTX A6000", 8.6),
        ("NVIDIA L4", 8.9),
        ("NVIDIA L40S", 8.9),
        ("NVIDIA GeForce RTX 4090", 8.9),
        ("NVIDIA H100 80GB HBM3", 9.0),
        ("NVIDIA H100 PCIe", 9.0),
        ("NVIDIA H200", 9.0),
        ("NVIDIA GH200 480GB", 9.0),
        ("NVIDIA B200", 10.0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12.0),
    ],
)
def test_gpu_is_known_by_nvml_name(printed: str, capability: float) -> None:
    found = find_product(printed)
    assert found.capability == capability


@pytest.mark.parametrize("printed", ["CPU", "A1000", "NVIDIA H1000", "NVIDIA Z99", "", "NVIDIA"])
def test_unknown_gpu_is_not_guessed(printed: str) -> None:
    assert find_product(printed) is None


@pytest.mark.parametrize(
    ("printed", "fp8", "fp4"),
    [
        ("AMD Instinct MI250X", False, False),
        ("AMD Instinct MI300X", True, False),
        ("AMD_Instinct_MI300X_OAM", True, False),
        ("AMD Instinct MI325X", True, False),
        ("AMD Instinct MI355X", True, True),
    ],
)
def test_amd_gpus_are_known_by_their_formats(printed: str, fp8: bool, fp4: bool) -> None:
    found = find_product(printed)
    assert (found.computes("fp8", 8.9), found.computes("fp4", 10.0)) == (fp8, fp4)
    assert found.computes("bf16", 8.0)


@pytest.mark.parametrize(
    ("written", "needs"),
    [
        ("fp8", "fp8"),
        ("FP8_E4M3", "fp8"),
        ("w8a8-fp8", "fp8"),
        ("fp8-w8a8", "fp8"),
        ("fp8_e5m2", "fp8"),
        ("int8", "int8"),
        ("w8a8-int8", "int8"),
        ("nvfp4", "fp4"),
        ("mxfp4", "fp4"),
        ("bf16", "bf16"),
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("awq-int4", ""),
        ("gptq-int8", ""),
        ("fp8-w8a16", ""),
        ("auto", ""),
        ("w8a8", None),
        ("ternary", None),
    ],
)
def test_format_needs_its_multiplications(written: str, needs: str | None) -> None:
    assert needed_format(written) == needs
