"""What holds for every test."""

from __future__ import annotations

import hypothesis

# A busy machine may take any time for an example; that says nothing about the code.
hypothesis.settings.register_profile(
    "longspan", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("longspan")
