"""Admission control by session: who has to wait outside until the sessions inside leave room."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from kvsim.errors import Problem
from kvsim.workload.requests import Workload


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    """Which session trees are let in; all limits hold at once, None is no limit.

    Attributes
    ----------
    max_live_sessions : int or None
        Most sessions inside.
    max_context_frac : float or None
        A session is let in only while the contexts of those inside and its own fit into this share of the pool.
    expected_tokens : int
        A session counts at least so many tokens [tokens]: contexts grow after it was let in.
    """

    max_live_sessions: int | None = None
    max_context_frac: float | None = None
    expected_tokens: int = 0

    def problems(self) -> list[Problem]:
        """What nobody could be let in with.

        >>> [str(problem) for problem in AdmissionConfig(0).problems()]
        ['engine: admission.max_live_sessions: got 0; accepted: 1 or more']
        """
        found: list[Problem] = []
        if self.max_live_sessions is not None and self.max_live_sessions < 1:
            found.append(Problem("engine", "admission.max_live_sessions", str(self.max_live_sessions), "1 or more"))
        if self.max_context_frac is not None and not self.max_context_frac > 0:
            found.append(Problem("engine", "admission.max_context_frac", str(self.max_context_frac), "more than 0"))
        if self.expected_tokens < 0:
            found.append(Problem("engine", "admission.expected_tokens", str(self.expected_tokens), "0 or more"))
        return found


class SessionGate:
    """Lets whole session trees in, first come first served, and the others wait.

    A session is inside from its first request until its last one has ended, thinking or not. Its context is the largest
    that one of its requests had, or that of all its requests in flight together where that is more. A session that
    would not fit alone is let in when nobody else is inside, or nobody inside has anything to ask. Warming ones come
    in freely and do not count: they are the measurement's, not the service's.

    Parameters
    ----------
    config : AdmissionConfig
        The limits.
    workload : Workload
        Its requests, and which of them warm up.
    blocks_of : callable
        Blocks that a context of that many tokens takes.
    num_blocks : int
        Blocks of the pool.

    Examples
    --------
    >>> from kvsim.workload.requests import Row, requests_from_rows
    >>> three = Workload(requests_from_rows([Row([(s, 64)], 1, 9, session=s) for s in (0, 1, 1)]))
    >>> gate = SessionGate(AdmissionConfig(max_live_sessions=1), three, lambda tokens: tokens, 100)
    >>> gate.enters(0), gate.enters(1), gate.enters(2), gate.leaves(0)
    (True, False, False, [1, 2])
    """

    def __init__(self, config: AdmissionConfig, workload: Workload, blocks_of: Callable[[int], int],
                 num_blocks: int) -> None:
        requests = workload.requests
        self._warming = set(workload.warming.tolist())
        self._most = config.max_live_sessions
        self._limit = None if config.max_context_frac is None else config.max_context_frac * num_blocks
        self._blocks_of, self._least = blocks_of, config.expected_tokens
        self._session: list[int] = requests.session.tolist()
        self._prompt: list[int] = requests.prompt_tokens.tolist()
        self._output: list[int] = requests.output_tokens.tolist()
        self._left = Counter(self._session)
        self._largest: dict[int, int] = {}
        self._flying: Counter[int] = Counter()
        self._held: dict[int, list[int]] = {}
        self._queue: deque[int] = deque()

    def enters(self, i: int) -> bool:
        """A request has come; False if it is kept until `leaves` gives it back."""
        session = self._session[i]
        if i in self._warming:
            return True
        if session not in self._largest:
            if session in self._held:
                self._held[session].append(i)
                return False
            if self._queue or not self._fits(self._prompt[i]):
                self._queue.append(session)
                self._held[session] = [i]
                return False
            self._largest[session] = 0
        self._fly(i)
        return True

    def leaves(self, i: int) -> list[int]:
        """A request has ended or was refused: the requests that come in now, in order."""
        session = self._session[i]
        self._left[session] -= 1
        if session in self._largest and i not in self._warming:
            self._flying[session] -= self._prompt[i]
            self._largest[session] = max(self._largest[session], self._prompt[i] + self._output[i])
            if not self._left[session]:
                del self._largest[session], self._flying[session]
        return self._let_in()

    def forget(self, session: int) -> list[int]:
        """The rest of a session will not be asked: the requests that come in now instead."""
        self._left[session] = 0
        self._largest.pop(session, None)
        self._flying.pop(session, None)
        if self._held.pop(session, None) is not None:
            self._queue.remove(session)
        return self._let_in()

    def nothing_left(self) -> list[int]:
        """Nobody inside has anything to ask: the next session comes in although it does not fit."""
        return self._next() if self._queue else []

    def _let_in(self) -> list[int]:
        rows: list[int] = []
        while self._queue and self._fits(self._prompt[self._held[self._queue[0]][0]]):
            rows += self._next()
        return rows

    def _next(self) -> list[int]:
        session = self._queue.popleft()
        self._largest[session] = 0
        held = self._held.pop(session)
        for i in held:
            self._fly(i)
        return held

    def _fly(self, i: int) -> None:
        """It is in flight from now on."""
        session = self._session[i]
        self._flying[session] += self._prompt[i]
        self._largest[session] = max(self._largest[session], self._prompt[i])

    def _fits(self, prompt_tokens: int) -> bool:
        """Whether one more session may come in."""
        if not self._largest:
            return True
        if self._most is not None and len(self._largest) >= self._most:
            return False
        if self._limit is None:
            return True
        contexts = [max(tokens, self._flying[s], self._least) for s, tokens in self._largest.items()]
        inside = sum(map(self._blocks_of, contexts))
        return inside + self._blocks_of(max(prompt_tokens, self._least)) <= self._limit
