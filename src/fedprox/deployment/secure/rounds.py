"""The operator's requests of a secure sum, around those whose answers are summed."""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from fedprox.deployment.conversation import Answered, named
from fedprox.deployment.messages import (
    Answer,
    Array,
    Kind,
    Request,
    Secret,
    Setup,
    Summed,
    WeightsBy,
)
from fedprox.deployment.secure.fixed_point import fixed_point_of, size_of
from fedprox.deployment.secure.keys import require_public
from fedprox.deployment.secure.node_sum import (
    EQUAL,
    HASH_LENGTH,
    Dealt,
    common_measures,
    context_of,
    equal,
)
from fedprox.deployment.secure.operator_sum import OperatorSum
from fedprox.deployment.secure.shamir import SHARE_BYTES
from fedprox.deployment.secure.sums import MASKED
from fedprox.deployment.server import Server
from fedprox.errors import InputError, require


@contextlib.contextmanager
def unknown_liar() -> Iterator[None]:
    """Raise an `InputError` as that of a sum that cannot be, whose messages nobody can look at."""
    try:
        yield
    except InputError as error:
        raise InputError(
            f"the sum cannot be: {error}; a node lies, and under masks it cannot be told which"
        ) from None


class SecureSum:
    """One secure sum.

    Args:
        server: What all methods share.
        setup: The method, with secure sums.
        of: The requests whose answers are summed.
        message: What is summed, in shape, leaves (points, ...).
        warn: Logs a line.

    Attributes:
        problems: Why nodes have dropped out, by index.
        bytes: Bytes of the stages' messages down and up, by index.
    """

    def __init__(
        self,
        server: Server,
        setup: Setup,
        of: Summed,
        message: Any,
        warn: Callable[[str], None],
    ) -> None:
        assert setup.secure is not None
        self.server, self.setup, self.message, self.warn = server, setup, message, warn
        self.fixed = fixed_point_of(setup, of)
        self.operator = OperatorSum(setup.secure, everyone=of == "evaluate")
        self.problems: dict[int, str] = {}
        self.bytes: dict[int, tuple[int, int]] = {}
        self.secret = Secret(sum=secrets.token_hex(16), of=of, by="rows")
        self.round = 0

    @property
    def measures(self) -> set[str]:
        """The measures in the sum of an evaluation."""
        return common_measures(self.operator.roster, self.operator.securing.threshold)

    @property
    def allowed(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The array of an answer that holds a masked message, in shape."""
        size = size_of(jax.tree.leaves(self.message))
        return {MASKED: jax.ShapeDtypeStruct((size,), self.fixed.word)}

    def require_masked(self, answered: Answered) -> None:
        """Raise `InputError` unless an answer has what is summed."""
        require(MASKED in answered.arrays, f"the array {MASKED!r} is missing")

    def prepared(
        self, requests: Mapping[int, Request], arrays: Sequence[Array]
    ) -> dict[int, Request]:
        """Agree on keys; the same requests with what each node needs for its masks.

        If a node lies about its shares, all begin anew without it, since no node has sent a message
        yet. It is left out of later sums too.

        Args:
            requests: The requests whose answers are summed, by node.
            arrays: The arrays that they need.

        Raises:
            InputError: If too few nodes have a request, or are left.
        """
        first = next(iter(requests.values()))
        self.round = first.round
        works = [each.work for each in requests.values() if each.work is not None]
        weights, rows = (
            np.array([n for work in works for n in getattr(work, name)])
            for name in ("weight", "rows")
        )
        by: WeightsBy = "rows" if not works or equal(weights / rows) else "clients"
        context = context_of(first.model_copy(update={"arrays": named(arrays).digests}))
        while True:
            left = self._without_liars(requests)
            self.operator = OperatorSum(self.operator.securing, everyone=self.operator.everyone)
            self.operator.require_messages([self.server.name(index) for index in left])
            self.secret = self._secret(sum=secrets.token_hex(16), by=by, context=context)
            accepted = self._agreed(left)
            if not self._condemned():
                break
        return {
            index: requests[index].model_copy(update={"secret": self._secret(**self._share(index))})
            for index in accepted
        }

    def _without_liars(self, requests: Mapping[int, Request]) -> dict[int, Request]:
        """The requests to nodes that have not lied in this sum or an earlier one."""
        dishonest = self.server.dishonest
        self.problems.clear()
        self.problems.update({i: dishonest[i] for i in requests.keys() & dishonest.keys()})
        return {index: each for index, each in requests.items() if index not in dishonest}

    def _condemned(self) -> bool:
        """Leave nodes out of later sums whose secrets are useless; whether there are some."""
        for name, why in self.operator.dishonest.items():
            self.server.leave_out(name, f"{why}; left out of secure sums from now on")
        return bool(self.operator.dishonest)

    def _agreed(self, requests: Mapping[int, Request]) -> dict[int, Answer]:
        """Let nodes agree on keys, and share their secrets; those that are ready to mask.

        Raises:
            InputError: If too few are left, or it cannot be told who lies about a share.
        """
        server, operator = self.server, self.operator
        adverts = self._ask(
            "advertise",
            {i: self._share(i) for i in requests},
            lambda index, answer: self._check_advert(index, answer, requests[index]),
            {
                i: {"work": each.work, "participation": each.participation}
                for i, each in requests.items()
            },
        )
        roster = operator.advertised(
            {server.name(i): each.advert for i, each in adverts.items() if each.advert}
        )
        shared = self._ask("share", {i: {"roster": roster} for i in adverts}, self._check_shared)
        given = operator.shared(
            {server.name(i): Dealt(each.shares, each.commitments) for i, each in shared.items()}
        )
        accepted = self._ask(
            "accept",
            {
                index: {
                    "shares": given[server.name(index)].sealed,
                    "commitments": given[server.name(index)].commitments,
                }
                for index in shared
            },
            self._check_accepted,
        )
        operator.accepted({server.name(i): each.unusable for i, each in accepted.items()})
        if not operator.dishonest:
            for first, second in operator.disagreements:
                self.warn(
                    f"{self._when}: nodes {first!r} and {second!r} disagree about a share, and one "
                    "of them lies; the sum does without it"
                )
        return accepted

    def total(self, answers: Mapping[int, Answered], counted: NDArray[np.float32]) -> Any:
        """The sum over some nodes, leaves (points, ...).

        Args:
            answers: Their answers, with what is summed; all other nodes have dropped out.
            counted: The sum of their weights (points,), which bounds the sum.

        Raises:
            InputError: If too few nodes are left, a node has lied about its secrets, or the sum
                cannot be one of such nodes.
        """
        server = self.server
        masked = {server.name(index): each.arrays[MASKED] for index, each in answers.items()}
        operator = self.operator
        operator.require_messages(masked)
        included = sorted(masked)
        content = operator.confirmed(included)
        confirmed = self._ask(
            "confirm",
            {index: {"included": included} for index in answers},
            lambda index, answer: self._require_signed(index, answer.signature, content),
        )
        signatures = {server.name(i): answer.signature for i, answer in confirmed.items()}
        operator.require_enough(signatures)
        revealed = self._ask(
            "reveal", {i: {"signatures": signatures} for i in confirmed}, self._check_revealed
        )
        shares = {server.name(i): answer.shares for i, answer in revealed.items()}
        try:
            total = operator.unmasked(masked, shares)
        finally:
            self._condemned()
            for name, why in operator.liars.items():
                self.warn(f"{self._when}: node {name!r}: reveal: {why}")
        with unknown_liar():
            self.fixed.check(total, self.message, counted, len(answers))
        message, clipped = self.fixed.values(total, self.message)
        if clipped:
            self.warn(f"{self._when}: {clipped:,} numbers beyond {self._bound} were clipped")
        return message

    @property
    def _when(self) -> str:
        """Which sum it is, in words."""
        if self.secret.of == "evaluate":
            return f"evaluation after round {self.round}"
        return f"round {self.round + 1}"

    @property
    def _bound(self) -> str:
        """What bounds numbers, in words."""
        bound = f"{self.fixed.bound:g}"
        return bound if self.secret.of == "evaluate" else f"deployment.secure.bound = {bound}"

    def _share(self, index: int) -> dict[str, float]:
        """A node's share of all rows, by which its measures count."""
        return {"share": float(self.server.shares[index])} if self.secret.of == "evaluate" else {}

    def counted(self, index: int, answered: Answered) -> Answered:
        """A node's answer, whose bytes include those of the stages."""
        down, up = self.bytes[index]
        return answered._replace(
            bytes_down=answered.bytes_down + down, bytes_up=answered.bytes_up + up
        )

    def _ask(
        self,
        kind: Kind,
        secret: Mapping[int, Mapping[str, Any]],
        check: Callable[[int, Answer], None] = lambda index, answer: None,  # noqa: ARG005
        others: Mapping[int, Mapping[str, Any]] = {},
    ) -> dict[int, Answer]:
        """Ask nodes for a stage; those that fail are missing, and `problems` says why.

        Args:
            kind: The stage.
            secret: Fields of each node's `Request.secret`.
            check: Raises `InputError` if an answer cannot be used.
            others: Further fields of each node's request.
        """
        server = self.server
        requests = {
            index: server.request(
                kind,
                self.setup,
                round=self.round,
                secret=self._secret(**fields),
                **others.get(index, {}),
            )
            for index, fields in secret.items()
        }
        answers: dict[int, Answered] = server.answers(server.begin(requests))
        checked = {}
        for index in requests:
            problem = server.problem(index)
            if index in answers:
                try:
                    head, _, down, up = answers[index]
                    before = self.bytes.get(index, (0, 0))
                    self.bytes[index] = before[0] + down, before[1] + up
                    check(index, head)
                    checked[index] = head
                    continue
                except InputError as error:
                    problem = f"its answer is refused: {error}"
            self.problems[index] = problem
            if kind in ("confirm", "reveal"):  # its message is in the sum, if there is one
                name = server.name(index)
                self.warn(f"{self._when}: node {name!r}: {kind}: {problem}")
        return checked

    def _secret(self, **fields: Any) -> Secret:
        return self.secret.model_copy(update=fields)

    def _require_signed(self, index: int, signature: str, content: bytes) -> None:
        require(
            self.server.has_signed(index, signature, content),
            "its signature is not by the key that the network knows it by",
        )

    def _check_advert(self, index: int, answer: Answer, request: Request) -> None:
        advert, secret = answer.advert, self.secret
        require(
            advert is not None
            and (advert.node, advert.sum) == (self.server.name(index), secret.sum)
            and (advert.context, advert.work.by) == (secret.context, secret.by)
            and (advert.work.measures is None) == (secret.of != "evaluate"),
            "it advertises something else than it was asked",
        )
        assert advert is not None
        rate = self._rate(index, request)
        require(
            abs(advert.work.rate - rate) <= EQUAL / 2 * rate,
            f"it advertises the weight {advert.work.rate:g}, and was asked for {rate:g}",
        )
        for key in (advert.sharing, advert.masking):
            require_public(bytes.fromhex(key))
        self._require_signed(index, advert.signature, advert.signed)

    def _rate(self, index: int, request: Request) -> float:
        """The weight of a node's clients, or of their rows, as it must advertise it."""
        if request.work is None:
            return float(self.server.shares[index]) / self.server.rows[index]
        rows = request.work.rows[0] if self.secret.by == "rows" else 1
        return request.work.weight[0] / rows

    def _check_shared(self, index: int, answer: Answer) -> None:
        names = {each.node for each in self.operator.roster}
        require(
            answer.shares.keys() == names - {self.server.name(index)}
            and answer.commitments.keys() == names
            and all(len(each) == 2 * HASH_LENGTH for each in answer.commitments.values()),
            "its shares are not for the nodes of the sum",
        )

    def _check_accepted(self, index: int, answer: Answer) -> None:
        others = self.operator.dealt.keys() - {self.server.name(index)}
        require(
            set(answer.unusable) <= others,
            "it names shares that it was not given",
        )

    def _check_revealed(self, index: int, answer: Answer) -> None:
        require(
            answer.shares.keys() == self.operator.revealing(self.server.name(index))
            and all(len(share) == 2 * SHARE_BYTES for share in answer.shares.values()),
            "its shares are not those of the nodes of the sum",
        )
