"""Text from a language model.

    model = LanguageModel.load("model.mslite", threads=2)
    for piece in model.generate("The capital of France is", max_tokens=20):
        print(piece.text, end="", flush=True)

`answer` says how one answer is made; here is what answers share: the model, its caches, and the texts kept in them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Items
from contextlib import suppress
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lite_runtime.errors import InputError
from lite_runtime.language.adapters import Adapter, Slots
from lite_runtime.language.answer import Answer, Piece, Request
from lite_runtime.language.engine import SLOTS, Engine, Part, Sequence
from lite_runtime.language.kept import Kept, common
from lite_runtime.language.pages import OutOfPages
from lite_runtime.language.sampling import Sampling, checked
from lite_runtime.language.speculation import Draft, Lookup, Proposer
from lite_runtime.language.stops import Stops
from lite_runtime.running import session as running

if TYPE_CHECKING:
    from lite_runtime.graph import Array
    from lite_runtime.language.sessions import Session
    from lite_runtime.language.tokenizers import Tokenizer

__all__ = ["LanguageModel", "Messages", "Piece"]

T = TypeVar("T")

Messages = Items[Mapping[str, Any]]
"""A conversation: `role` and `content` of each message, and what else the model's chat template reads."""
_TOP = 20
"""Log-probabilities of most probable tokens that may be asked for, as in OpenAI's interface."""


class LanguageModel:
    """A model, its tokenizer, and caches for texts. Safe to call from several threads: runs exclude each other."""

    def __init__(
        self,
        model: running.Model,
        *,
        positions: int | None = None,
        draft: LanguageModel | None = None,
        adapters: int = SLOTS,
    ) -> None:
        """positions: tokens that fit the caches, of all texts together; the model's context by default. draft: a
        smaller model of the same vocabulary, whose proposals this one checks; nothing else uses it. adapters: how many
        are in memory at once. Raises InputError for a bundle without a language model, or a draft of another
        vocabulary."""
        self.engine = Engine(model, positions, adapters)
        self.about = self.engine.about
        self.tokenizer = _tokenizer(model)
        self.digest = model.bundle.digest
        self.draft = draft
        if draft is not None and not _same_vocabulary(self, draft):
            raise InputError("expected a draft model with the same vocabulary, got one of another; choose another")
        self._kept, self._lock = Kept(self.engine), RLock()
        self._slots = Slots(self.engine, self._kept.forget)
        self._ends = frozenset(self.about["stop"])

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | bytes | memoryview,
        *,
        positions: int | None = None,
        draft: LanguageModel | None = None,
        adapters: int = SLOTS,
        **settings: Any,
    ) -> LanguageModel:
        """Open a bundle; see `lite_runtime.load` for threads and other settings."""
        return cls(running.load(source, **settings), positions=positions, draft=draft, adapters=adapters)

    def session(self, *, adapter: Adapter | None = None, **metadata: Any) -> Session:
        """A new session. adapter: that of all its answers. Raises InputError for one that does not fit the model."""
        from lite_runtime.language.sessions import Session

        self._need_fitting(adapter)
        return Session(self, metadata=metadata, adapter=adapter)

    def restore(self, path: str | os.PathLike[str], *, adapter: Adapter | None = None) -> Session:
        """A session from a file: see `lite_runtime.language.sessions.restore`."""
        from lite_runtime.language.sessions import restore

        return restore(self, path, adapter)

    def tokens(
        self, prompt: str | None = None, messages: Messages | None = None, tokens: Items[int] | None = None
    ) -> list[int]:
        """The tokens of one of: a text, a conversation, tokens. Raises InputError unless exactly one is given, and for
        a text that is longer than the model's context."""
        if sum(given is not None for given in (prompt, messages, tokens)) != 1:
            raise InputError("expected one of prompt, messages and tokens")
        if tokens is not None:
            made = list(tokens)
        else:
            from lite_runtime.language import prompts

            made = (
                prompts.of_text(self.words(), prompt)
                if prompt is not None
                else prompts.of_messages(self.about, self.words(), messages or ())
            )
        if not made:
            raise InputError("expected a prompt of at least one token, got an empty one")
        if len(made) >= self.engine.context:
            raise InputError(
                f"the prompt has {len(made)} tokens, and this model's context has {self.engine.context}, of which the"
                " answer needs at least one; shorten it"
            )
        if not all(type(token) is int and 0 <= token < self.about["vocabulary"] for token in made):
            raise InputError(f"expected tokens from 0 to {self.about['vocabulary'] - 1}")
        return made

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        tokens: Items[int] | None = None,
        max_tokens: int | None = None,
        stop: Items[str] = (),
        logprobs: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        speculate: Literal["lookup", "draft"] | None = None,
        session: Session | None = None,
        adapter: Adapter | None = None,
        **sampling: Any,
    ) -> Generator[Piece]:
        """The answer to a text, a conversation or tokens, as an iterator of pieces; the last one says why it ended.

        max_tokens: of the answer; by default as many as the context has room for. stop: texts that end the answer, and
        are no part of it. logprobs: also log-probabilities, with those of so many most probable tokens.
        response_format: what the answer must be (`lite_runtime.language.constraints`). speculate: several tokens in one
        run where the text repeats itself ("lookup") or by the draft model; greedy answers are the same without.
        session: whose caches continue with this text; it has one answer at a time. adapter: what was learned beside the
        weights; it is put into a slot when the answer begins, for which the one that was used least recently makes way
        (NoSlot if texts use all of them). sampling: fields of `Sampling`; greedy by default. Closing the iterator ends
        the answer.
        Raises InputError, before anything runs, for options out of their range, a prompt that does not fit, and an
        adapter that is not of this model.
        """
        if session is not None and adapter is not None:
            raise InputError("expected a session or an adapter, got both; a session has its adapter from its beginning")
        self._need_fitting(adapter)
        request = self.request(
            self.tokens(prompt, messages, tokens),
            max_tokens=max_tokens,
            stop=stop,
            logprobs=logprobs,
            response_format=response_format,
            speculate=speculate,
            **sampling,
        )
        return self._pieces(request, session, adapter if session is None else session.adapter)

    def request(
        self,
        tokens: Items[int],
        *,
        max_tokens: int | None = None,
        stop: Items[str] = (),
        logprobs: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        speculate: Literal["lookup", "draft"] | None = None,
        **sampling: Any,
    ) -> Request:
        """What `generate` was asked for, checked: see there. Raises InputError for options out of their range."""
        room = self.engine.context - len(tokens)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise InputError(f"max_tokens: expected a whole number from 1 on, got {max_tokens!r}")
        if logprobs is not None and (type(logprobs) is not int or not 0 <= logprobs <= _TOP):
            raise InputError(f"logprobs: expected a number from 0 to {_TOP}, got {logprobs!r}")
        unknown = set(sampling).difference(Sampling._fields)
        if unknown:
            raise InputError(f"expected options of {', '.join(Sampling._fields)}, got {', '.join(sorted(unknown))}")
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        Stops(stops)
        if stops:
            self.words()
        options = checked(Sampling(**sampling), self.about["vocabulary"])
        constraint = None
        if response_format is not None:
            from lite_runtime.language import constraints

            constraint = constraints.constraint(response_format, self.words(), self.about)
        return Request(
            tokens=tokens,
            limit=min(room, max_tokens or room),
            ends=self._ends,
            stops=stops,
            sampling=options,
            logprobs=logprobs,
            constraint=constraint,
            proposer=self._proposer(speculate, options),
        )

    # -- sequences -----------------------------------------------------------------------------------------------------

    def begin(self, tokens: Items[int], session: Session | None = None, adapter: Adapter | None = None) -> Sequence:
        """A sequence for a text: it holds as much of it as the caches have already, but not its last token. Its adapter
        stays in its slot until `leave`."""
        with self._lock:
            if session is not None:
                session.check_free(self)
            slot = self._slots.take(adapter)
            if session is None:
                return self._kept.take(tokens, slot)
            held = session.sequence
            held.adapter = slot
            self.engine.cut(held, min(common(held.tokens, tokens), len(tokens) - 1))
            if not len(held):
                session.sequence = self._kept.take(tokens, slot)
            session.answering = True
            return session.sequence

    def _need_fitting(self, adapter: Adapter | None) -> None:
        """Raise InputError for an adapter that is not of this model."""
        if adapter is not None and self._slots.find(adapter) is None:
            self.engine.check(adapter)

    def leave(self, sequence: Sequence) -> None:
        """An answer has ended: its adapter may make way."""
        with self._lock:
            self._slots.give_back(sequence.adapter)

    def end(self, sequence: Sequence, adapter: Adapter | None = None) -> None:
        """A text has ended: its pages are kept for others that begin like it, as long as there is room and its adapter
        is in a slot."""
        with self._lock:
            slot = self._slots.find(adapter)
            if slot is None:
                self.engine.end(sequence)
                return
            sequence.adapter = slot
            self._kept.add(sequence)

    def forget(self) -> None:
        """Give back the pages of all texts that are only kept."""
        with self._lock:
            while self._kept.drop():
                pass

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that begins like this one."""
        with self._lock:
            return self.engine.fork(sequence)

    def run(self, parts: Items[Part]) -> list[Array]:
        """A run of the engine; texts that are only kept make room for it."""
        return self._with_room(lambda: self.engine.run(parts))

    def copied(self, sequence: Sequence) -> tuple[list[int], dict[str, Array]]:
        """The tokens of a sequence and its pages, between two runs."""
        with self._lock:
            return list(sequence.tokens), self.engine.copied(sequence)

    def restored(self, tokens: Items[int], pages: Mapping[str, Array]) -> Sequence:
        """A sequence with the pages that `copied` gave."""
        return self._with_room(lambda: self.engine.restored(tokens, pages))

    def _with_room(self, work: Callable[[], T]) -> T:
        with self._lock:
            while True:
                try:
                    return work()
                except OutOfPages:
                    if not self._kept.drop():
                        raise

    def part(self, answer: Answer) -> Part:
        """What the next run adds to an answer's sequence."""
        with self._lock:  # a draft model's caches are used as well
            return answer.part()

    def take(self, answer: Answer, logits: Array) -> Piece:
        """What a run adds to an answer."""
        with self._lock:
            return answer.take(logits, self.engine)

    def answer(self, request: Request, sequence: Sequence) -> Answer:
        """The answer to a request, which `sequence` will hold; several answers to one request are independent."""
        words = self.tokenizer
        return Answer(request, sequence, None if words is None else words.detokenizer(padded=True))

    def _pieces(self, request: Request, session: Session | None, adapter: Adapter | None = None) -> Generator[Piece]:
        sequence = self.begin(request.tokens, session, adapter)
        try:
            answer = self.answer(request, sequence)
            while answer.finished is None:
                (logits,) = self.run([self.part(answer)])
                yield self.take(answer, logits)
        finally:
            if request.proposer is not None:
                request.proposer.close()
            self.leave(sequence)
            if session is None:
                self.end(sequence, adapter)
            else:
                session.answering = False

    # -- parts ---------------------------------------------------------------------------------------------------------

    def words(self) -> Tokenizer:
        """The tokenizer. Raises InputError for a bundle without one."""
        if self.tokenizer is None:
            raise InputError("this bundle has no tokenizer; give tokens, or convert the model again")
        return self.tokenizer

    def _proposer(self, speculate: str | None, sampling: Sampling) -> Proposer | None:
        if speculate is None:
            return None
        if speculate not in _PROPOSERS:
            raise InputError(f"speculate: expected one of {', '.join(_PROPOSERS)}, got {speculate!r}")
        return _PROPOSERS[speculate](self, sampling)


def _lookup(model: LanguageModel, sampling: Sampling) -> Proposer:
    return Lookup()


def _draft(model: LanguageModel, sampling: Sampling) -> Proposer:
    if model.draft is None:
        raise InputError("speculate='draft' needs a draft model; load the model with draft=…")
    return Draft(model.draft.engine, sampling)


_PROPOSERS: Mapping[str, Callable[[LanguageModel, Sampling], Proposer]] = MappingProxyType(
    {"lookup": _lookup, "draft": _draft}
)


def _tokenizer(model: running.Model) -> Tokenizer | None:
    """The tokenizer of a bundle; None if it has none."""
    with suppress(KeyError):
        data = model.bundle.section("tokenizer")
        from lite_runtime.language.tokenizers import Tokenizer

        return Tokenizer.from_bytes(data)
    return None


def _same_vocabulary(a: LanguageModel, b: LanguageModel) -> bool:
    if a.about["vocabulary"] != b.about["vocabulary"]:
        return False
    if a.tokenizer is None or b.tokenizer is None:
        return True
    return a.tokenizer.description.tokens == b.tokenizer.description.tokens
