"""Generated sessions besides agents: chats over one system prompt, questions about shared documents, batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.rng import stream
from kvsim.workload.lengths import LogNormal, whole_tokens
from kvsim.workload.requests import Floats
from kvsim.workload.sessions import SessionTree, Turn, tree_from_turns

_TTFT_S, _TOKENS_PER_S = 1.0, 50.0
"""Speed that gives generated sessions their nominal start times; a simulation replaces it."""


@dataclass(frozen=True, slots=True)
class Chat:
    """People who talk to a model: every turn appends the answer and what is said next.

    Attributes
    ----------
    turns : LogNormal
        Turns of a conversation.
    system_tokens : int
        System prompt that all conversations begin with; 0 = none.
    user, output : LogNormal
        Tokens of what a user says, and of an answer.
    think : LogNormal
        Time from an answer's end to the next turn [s].
    """

    turns: LogNormal
    system_tokens: int
    user: LogNormal
    output: LogNormal
    think: LogNormal

    def trees(self, num_sessions: int, seed: int = 0) -> list[SessionTree]:
        """Conversations; the first ones do not depend on how many follow.

        Examples
        --------
        >>> chat = Chat(LogNormal(3), 1000, LogNormal(100), LogNormal(50), LogNormal(20.0))
        >>> chat.trees(2)[1].prompt_tokens.tolist()
        [1100, 1250, 1400]
        """
        return [self._tree(k, stream(seed, f"chat {k}")) for k in range(num_sessions)]

    def _tree(self, number: int, rng: np.random.Generator) -> SessionTree:
        num_shared = 1 if self.system_tokens else 0
        n = int(whole_tokens(self.turns.draw(rng, 1))[0])
        said, answers = whole_tokens(self.user.draw(rng, n)).tolist(), whole_tokens(self.output.draw(rng, n)).tolist()
        gaps, turns, start_s, context = self.think.draw(rng, n).tolist(), list[Turn](), 0.0, 0
        system = [(0, self.system_tokens)] if num_shared else []
        for k in range(n):
            gap_s, context = (gaps[k] if k else 0.0), context + said[k]
            start_s += gap_s
            turns.append(Turn((*system, (num_shared, context)), answers[k], num_shared, start_s, gap_s,
                              after=(k - 1,) if k else ()))
            start_s += _TTFT_S + answers[k] / _TOKENS_PER_S
            context += answers[k]
        return tree_from_turns(f"chat-{number}", turns, num_shared + 1, num_shared)


@dataclass(frozen=True, slots=True)
class Rag:
    """Questions about documents that many ask about; every question stands alone.

    Attributes
    ----------
    num_documents, documents_per_request : int
        Documents there are, and different ones in a prompt, the most relevant first.
    document : LogNormal
        Tokens of a document.
    zipf : float
        Popularity: the k-th document is asked for in proportion to k^-zipf; 0 = all alike.
    system_tokens : int
        System prompt before the documents; 0 = none.
    question, output : LogNormal
        Tokens behind the documents, and of an answer.
    sort_documents : bool
        Put the more popular document of a prompt first, which lets more prompts begin alike.
    """

    num_documents: int
    documents_per_request: int
    document: LogNormal
    zipf: float
    system_tokens: int
    question: LogNormal
    output: LogNormal
    sort_documents: bool = False

    def trees(self, num_sessions: int, seed: int = 0) -> list[SessionTree]:
        """Questions, a session each.

        Examples
        --------
        >>> rag = Rag(10, 2, LogNormal(500), 1.0, 100, LogNormal(30), LogNormal(200))
        >>> tree = rag.trees(1)[0]
        >>> tree.prompt_tokens.tolist(), len(tree.piece_tokens), tree.num_shared
        ([1130], 4, 11)
        """
        lengths = whole_tokens(self.document.draw(stream(seed, "documents"), self.num_documents)).tolist()
        weights = np.arange(1, self.num_documents + 1, dtype=float) ** -self.zipf
        rng = stream(seed, "questions")
        asked = [self._documents(rng, weights) for _ in range(num_sessions)]
        sizes = stream(seed, "sizes of questions")
        questions, answers = _pairs(sizes, self.question, self.output, num_sessions)
        return [self._tree(k, [(1 + d, lengths[d]) for d in asked[k]], questions[k], answers[k])
                for k in range(num_sessions)]

    def _documents(self, rng: np.random.Generator, weights: Floats) -> list[int]:
        """Different documents by weight: the largest of exponentials divided by their rates (Efraimidis, Spirakis)."""
        keys = rng.exponential(1.0, len(weights)) / weights
        most = np.argpartition(keys, self.documents_per_request - 1)[:self.documents_per_request]
        return sorted(most.tolist()) if self.sort_documents else most[np.argsort(keys[most])].tolist()

    def _tree(self, number: int, documents: list[tuple[int, int]], question: int, answer: int) -> SessionTree:
        own = 1 + self.num_documents
        system = [(0, self.system_tokens)] if self.system_tokens else []
        return tree_from_turns(f"rag-{number}", [Turn((*system, *documents, (own, question)), answer, own, 0.0, 0.0)],
                               own + 1, own)


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs without anybody waiting: one instruction before every item.

    Attributes
    ----------
    shared_tokens : int
        Instruction that all prompts begin with; 0 = none.
    item, output : LogNormal
        Tokens of an item, and of an answer.
    """

    shared_tokens: int
    item: LogNormal
    output: LogNormal

    def trees(self, num_sessions: int, seed: int = 0) -> list[SessionTree]:
        """Items, a session each.

        >>> [t.prompt_tokens.tolist() for t in Batch(300, LogNormal(1000), LogNormal(50)).trees(2)]
        [[1300], [1300]]
        """
        shared = 1 if self.shared_tokens else 0
        head = [(0, self.shared_tokens)] if shared else []
        items, answers = _pairs(stream(seed, "batch items"), self.item, self.output, num_sessions)
        return [tree_from_turns(f"batch-{k}", [Turn((*head, (shared, item)), answer, shared, 0.0, 0.0)],
                                shared + 1, shared)
                for k, (item, answer) in enumerate(zip(items, answers, strict=True))]


def _pairs(rng: np.random.Generator, first: LogNormal, second: LogNormal, n: int) -> tuple[list[int], list[int]]:
    """Two lengths of each of `n` requests; the first requests do not depend on how many follow."""
    z = rng.standard_normal((n, 2))
    return whole_tokens(first.at_score(z[:, 0])).tolist(), whole_tokens(second.at_score(z[:, 1])).tolist()
