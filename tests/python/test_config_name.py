"""hopgemm._config_name: names as src/host/config_name.cc writes them."""

import pytest

from hopgemm import _config_name, _core


def test_every_compiled_kernel_has_a_name_that_can_be_taken_apart():
    for config in _core.configs():
        x = _config_name.parse(config)
        tile = f"{x.tile_m}x{x.tile_n}x{x.tile_k}_c{x.cluster_m}x{x.cluster_n}"
        assert config == f"{x.dtype}_{x.majors}_{tile}_s{x.stages}_{x.arrangement}" and x.tokens == []


def test_a_schedule():
    x = _config_name.parse("bf16_kn_16x128x64_c1x2_s11_swap+n4+ctas132+split2")
    assert x == ("bf16", "kn", 16, 128, 64, 1, 2, 11, "swap", "+n4+ctas132+split2")
    assert x.tokens == ["n4", "ctas132", "split2"]


@pytest.mark.parametrize("name", ["", "auto", "bf16_kk_128x256x64_c2x1_s4", "f32_kk_64x64x64_c1x1_s12_coop"])
def test_what_is_no_name(name):
    with pytest.raises(ValueError, match="not a config's name"):
        _config_name.parse(name)
