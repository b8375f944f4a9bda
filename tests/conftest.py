"""Set before any test imports JAX: the CPU, plots that open no window, and none of this person's settings."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["MPLBACKEND"] = "Agg"
for name in ("XLA_FLAGS", "JAX_DISABLE_JIT", "JAX_ENABLE_X64", "JAX_COMPILATION_CACHE_DIR", "OPLAB_STABLE"):
    os.environ.pop(name, None)

# Two devices, so that programs over several can be walked. A flag: it must stand before the backend is up.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

from browser import browser, page  # noqa: E402, F401  (fixtures for every test that shows a page)
