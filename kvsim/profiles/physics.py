"""Physical plausibility of a GPU profile: what no real chip can do is refused when the file is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from kvsim.errors import Problem
from kvsim.profiles.figure import Figure
from kvsim.profiles.hardware import GpuProfile, Link
from kvsim.units import si

FLOP_PER_CLOCK_PER_SM = MappingProxyType({
    "ampere": 2048, "ada": 1024, "hopper": 4096, "blackwell": 8192, "blackwell-workstation": 1024,
    "cdna3": 2048, "cdna4": 4096,
})
"""Dense bf16 FLOP per clock of one SM (NVIDIA) or compute unit (AMD), from the published peaks of each architecture."""

_DENSE_MARGIN = 1.10  # rounding of data sheets and the choice between boost and application clock
_FP8_OVER_BF16 = MappingProxyType({"trainium": 4.0})  # Trainium3 quadruples its bf16 rate
_FP8_OVER_BF16_USUAL = 2.2
_FP4_OVER_FP8 = 3.5  # Blackwell Ultra triples its fp8 rate
_USABLE_FRAC = (0.85, 1.10)  # of the marketed size; GB sold as GiB gives 1.074


def dense_problems(gpu: GpuProfile, where: str) -> list[Problem]:
    """FLOPS of a GPU profile that exceed what its SMs can do, as sparse data-sheet figures do.

    The bound is SMs x boost clock x dense FLOP per clock of the architecture, plus 10 %. It is silent when
    the profile lacks ``num_sms`` or ``boost_clock``, or the architecture has no known rate; the ratios between
    the lanes are checked always.

    Parameters
    ----------
    gpu : GpuProfile
        The profile.
    where : str
        Its file, for the problem text.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> dense_problems(default_store().get("gpu", "h100"), "h100-sxm.yaml")
    []
    """
    problems: list[Problem] = []
    bf16, fp8, fp4 = (gpu.flops.get(lane) for lane in ("bf16", "fp8", "fp4"))
    bound = dense_bound(gpu)
    if bf16 and bound and bf16.base > bound * _DENSE_MARGIN:
        problems.append(_too_fast(where, "bf16", bf16, bound))
    ratio = _FP8_OVER_BF16.get(gpu.architecture, _FP8_OVER_BF16_USUAL)
    if bf16 and fp8 and fp8.base > bf16.base * ratio:
        problems.append(_too_fast(where, "fp8", fp8, bf16.base * 2))
    if fp8 and fp4 and fp4.base > fp8.base * _FP4_OVER_FP8:
        problems.append(_too_fast(where, "fp4", fp4, fp8.base * 2))
    return problems


def dense_bound(gpu: GpuProfile) -> float | None:
    """Dense bf16 FLOP/s that SMs x boost clock allow; None where the profile does not say.

    Examples
    --------
    >>> from kvsim.profiles.store import default_store
    >>> round(dense_bound(default_store().get("gpu", "h100")) / 1e12)
    989
    """
    rate = FLOP_PER_CLOCK_PER_SM.get(gpu.architecture)
    if rate is None or gpu.num_sms is None or gpu.boost_clock is None:
        return None
    return rate * gpu.num_sms.base * gpu.boost_clock.base


def memory_problems(gpu: GpuProfile, where: str) -> list[Problem]:
    """Memory sizes and link rates of a GPU profile that contradict each other."""
    problems: list[Problem] = []
    share = gpu.hbm_usable.base / gpu.hbm_marketed.base if gpu.hbm_marketed.base else 0.0
    low, high = _USABLE_FRAC
    if not low <= share <= high:
        problems.append(Problem(where, "hbm_usable", f"{share:.2f} x hbm_marketed", f"{low} to {high} x hbm_marketed"))
    if not 0.9 <= gpu.engine_visible_frac.base <= 1.0:
        problems.append(Problem(where, "engine_visible_frac", f"{gpu.engine_visible_frac.base}", "0.9 to 1.0"))
    return problems + list(_link_problems(gpu.host_link, where))


def _link_problems(link: Link, where: str) -> Iterator[Problem]:
    """Rates of the host link above its nominal rate."""
    for name, figure, times in (("to_gpu", link.to_gpu, 1), ("from_gpu", link.from_gpu, 1), ("both", link.both, 2)):
        limit = link.bandwidth.base * times
        if figure is not None and figure.base > limit:
            yield Problem(where, f"host_link.{name}", f"{figure.value} {figure.unit}",
                          f"at most {si(limit, 'B/s')}: {times} x host_link.bandwidth")


def _too_fast(where: str, lane: str, given: Figure, dense: float) -> Problem:
    """The problem of a lane that is faster than its silicon."""
    return Problem(where, f"flops.{lane}", f"{given.value:g} {given.unit}", f"dense, about {si(dense, 'FLOP/s')}",
                   "looks like a sparse figure; the dense one is half of it")
