"""How one replica of a model is spread over its GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallelism of one replica.

    Parameters
    ----------
    tp, pp : int
        Tensor and pipeline parallel degree; a replica of one attention-DP rank has tp x pp GPUs.
    ep : int
        Expert parallel degree; 1 = experts are split by tensor parallelism.
    dp : int
        Attention data parallel degree: ranks with KV pools of their own.
    dcp : int
        Decode context parallel degree inside the TP group: attention KV is striped over it.

    Examples
    --------
    >>> Layout(tp=8, pp=2).num_gpus
    16
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1
    dcp: int = 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica (EP and DCP reuse them)."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        extra = [f"{n.upper()}{v}" for n, v in (("pp", self.pp), ("ep", self.ep), ("dp", self.dp), ("dcp", self.dcp))
                 if v > 1]
        return " x ".join([f"TP{self.tp}", *extra])
