"""GPUs that are not here."""

import pytest

from kernelmark.core.errors import UsageError
from kernelmark.gpu.architectures import absent, known_names


def test_a_gpu_is_called_as_it_calls_itself():
    assert absent("sm_90a") == absent("sm_90")
    assert absent("sm_90a").arch == "sm_90"
    assert absent("gfx90a").arch == "gfx90a"
    assert absent("gfx942:sramecc+:xnack-") == absent("gfx942")


@pytest.mark.parametrize("arch", ["mi300x", "sm_999", "gfx9", "sm_90:xnack-"])
def test_an_unknown_architecture_gets_the_list_of_known_ones(arch):
    with pytest.raises(UsageError) as raised:
        absent(arch)
    assert raised.value.hint == known_names()
