"""What holds for every test: no screen, no sound, and how long Hypothesis searches."""

import os

# Before anything imports pygame or MuJoCo, which read these once.
os.environ.setdefault("MUJOCO_GL", "egl")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

from hypothesis import HealthCheck, settings

# Machines of CI are slow at times: what a test may take is told by pytest's timeout, not by Hypothesis.
settings.register_profile("ci", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
