"""What others print on an engine's page, and why it is left alone: the same whatever the engine is.

Owns reasons only. A Dynamo worker puts its own families around its engine's, KV managers theirs, Triton the GPU's. An
engine that knows better says so in its own table: its reason goes first.
"""

from __future__ import annotations

from rules.engines.table import IgnoredFamily

_REASONS: tuple[tuple[str, str], ...] = (
    ("dynamo_component_", "Dynamo's count around the engine; the engine's own is used"),
    ("dynamo_component_model_load_time_seconds", "how long loading the model took: a part of a cold start"),
    ("dynamo_component_router_", "Dynamo's router"),
    ("dynamo_component_kv_publisher_", "Dynamo's events about KV blocks, for its router"),
    ("dynamo_frontend_", "Dynamo's frontend; its own page is read as the frontend's"),
    ("dynamo_preprocessor_", "Dynamo's preprocessor"),
    ("dynamo_router_", "Dynamo's router"),
    ("dynamo_routing_overhead_", "Dynamo's router"),
    ("dynamo_kvindexer_", "Dynamo's index of KV blocks"),
    ("dynamo_work_handler_", "Dynamo's own queue between frontend and engine"),
    ("dynamo_request_plane_", "Dynamo's transport"),
    ("dynamo_transport_", "Dynamo's transport"),
    ("dynamo_rejection_", "Dynamo's transport"),
    ("dynamo_lifecycle_", "how Dynamo drains a worker"),
    ("dynamo_task", "Dynamo's tasks"),
    ("dynamo_tokio_", "the runtime that Dynamo runs on"),
    ("kvbm_", "Dynamo's KV block manager: traffic between GPU, host and disk"),
    ("lmcache_", "LMCache, a KV connector: traffic between GPU, host and disk"),
    ("nv_gpu_", "Triton's view of the GPU, which is read from the GPU itself"),
    ("nv_energy_consumption", "Triton's view of the GPU, which is read from the GPU itself"),
)

ALONGSIDE: tuple[IgnoredFamily, ...] = tuple(IgnoredFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
