from __future__ import annotations

import shutil

import pytest

COMPILER = any(shutil.which(name) for name in ("c++", "g++", "clang++"))


@pytest.fixture
def compiler():
    if not COMPILER:
        pytest.skip("there is no C++ compiler here")
