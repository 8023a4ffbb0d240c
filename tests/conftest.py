"""What holds for all tests."""

from __future__ import annotations

from hypothesis import settings

# A machine that others use is slow at times, which says nothing about what is tested.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
