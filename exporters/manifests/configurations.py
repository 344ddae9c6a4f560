"""The configurations and the plan that the manifests install: examples that work, and that you replace.

Owns these documents. That each is one that the program takes is for a test to say, for only the agent knows its keys.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

PORT = 9095
"""Of the pages of every agent."""

DCGM_PORT = 9400

TIER = "h100-llama70b-fp8"

PLAN: Json = {
    "schema": 1,
    "tiers": {
        TIER: {
            "model": "llama-3.3-70b-instruct",
            "engine": "vllm",
            "gpu": {"product": "NVIDIA H100 80GB HBM3", "per_replica": 4},
            "slo": {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.08},
        }
    },
}
"""What a plan must have; `sizewatch plan import` adds the benchmark, without which nothing is compared with one."""

_PAGES: Json = {"web": {"listen": f":{PORT}"}, "logging": {"format": "json"}}

DCGM: Json = {"source": "dcgm", "dcgm": {"url": f"http://dcgm-exporter-local.gpu-operator.svc:{DCGM_PORT}/metrics"}}
"""The exporter of the same node, by a Service that never leaves it (dcgm-local-service.yaml)."""

NODE: Json = {
    "role": "node",
    "plan": "plan.yaml",
    "discovery": {"kubernetes": {"scope": "node"}},
    "gpus": {"source": "nvml"},
    # Role fleet tells it: a node sees only the replicas of its own.
    "tier_verdicts": False,
    **_PAGES,
}

NODE_ALONE: Json = {**NODE, "tier_verdicts": True}
"""Without a fleet above: each node judges a tier by its own replicas, which is better than not at all."""

NODE_DCGM: Json = {**NODE, "gpus": DCGM}

DATA_DIR = "/var/lib/sizewatch"

FLEET: Json = {
    "role": "fleet",
    "plan": "plan.yaml",
    "data_dir": DATA_DIR,
    "store": {"url": "http://prometheus-operated.monitoring.svc:9090"},
    # Its name, the pod's and the namespace are defaults that the program knows.
    "fleet": {"lease": {}},
    **_PAGES,
}

FLEET_ENGINES: Json = {
    **FLEET,
    "tiers": {TIER: {"from": "engines", "selector": 'job="vllm"', "replica_label": "pod"}},
}
"""Where no agent runs: which series of the store are a tier's engines."""

STANDALONE: Json = {**NODE_ALONE, "role": "standalone", "data_dir": DATA_DIR}

SIDECAR: Json = {
    "role": "node",
    "plan": "plan.yaml",
    "discovery": {"kubernetes": {"scope": "pod"}},
    "targets": [{"url": "http://127.0.0.1:8000/metrics", "tier": TIER}],
    "gpus": {"source": "none"},
    **_PAGES,
}
