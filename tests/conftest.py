"""What every test of the project shares: the hypothesis profile. Fixtures live in the folder that needs them."""

from __future__ import annotations

from hypothesis import settings

# Loaded by name because hypothesis would choose a profile without randomness where CI is set: CI has to look
# for new examples as a developer does. The printed blob repeats a failure; pytest-timeout is the deadline, a
# time per example would only make a slow machine look like a bug.
settings.register_profile("toolfleet", derandomize=False, print_blob=True, deadline=None)
settings.load_profile("toolfleet")
