"""Settings that hold for every test."""

from __future__ import annotations

from hypothesis import settings

# A busy machine must not fail a property: examples are bounded in number, not in time. On CI, where the
# examples are fixed, hypothesis' own profile stands.
settings.register_profile("weighbridge", deadline=None)
settings.register_profile("weighbridge-ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("weighbridge-ci" if settings.get_current_profile_name() == "ci" else "weighbridge")
