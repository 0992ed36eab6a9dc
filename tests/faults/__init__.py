"""What the server survives."""

import pytest

pytest.register_assert_rewrite("tests.faults.audit")
