"""Limits of services, as tests need them."""

from __future__ import annotations

import math
from typing import Final

from mongo_session_service.testing import Limits

NO_SWEEP: Final = Limits(sweep_interval=math.inf)
"""What has expired stays until somebody removes it."""

QUICK_SWEEP: Final = Limits(sweep_rest=0.1, sweep_patience=0.2)
"""What has expired is removed a little sooner."""
