"""No function of a framework itself is said to break a law; a sample of what
`python -m tests.audit.audited` runs whole.
"""

from __future__ import annotations

import pytest

from ..support.sampling import WHOLE
from .audited import accused

PART = 1.0 if WHOLE else 0.3  # of each share below
SHARES = {"torch": 0.1, "jax": 0.03, "tensorflow": 0.15}
# The slopes of a factorization take as long as all others together.
BUT_FACTORS = r"^(?!.*\.linalg\.qr$)"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "library", [pytest.param(name, marks=pytest.mark.needs(name)) for name in SHARES]
)
def test_no_function_of_a_framework_is_accused(library: str) -> None:
    found = dict(accused(library, BUT_FACTORS, PART * SHARES[library]))
    assert len(found) >= 3
    assert {name: findings for name, findings in found.items() if findings} == {}
