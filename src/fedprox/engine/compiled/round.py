"""The compiled program that runs rounds.

A round is a loop over segments, and a segment is a loop over ticks (`lanes.run_segments`). A tick
is one mini-batch of each lane (or a part of a wide one, or a line search). It steps all sweep
points at once, or the program runs the points one after another (`point_by_point`). When a job
ends, its message is added to the server's mean with its weight. The client's new state is written
to its place, and the lane begins its next job. A sum over the devices and the algorithm's update
end the round. If clients have models of their own that need a second local problem, the jobs run
twice, first for these models. If the method uses the clients' own gradients, they are computed
before the local work, together with those of the first cohort.

Arrays have axes for lanes, then sweep points, then the axes of the parameter.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.stages import Wrapped

from fedprox.algorithms.base import ClientContext, ClientState, HParams, State
from fedprox.algorithms.personal import second_pass
from fedprox.devices.mesh import (
    AXIS,
    PER_DEVICE,
    PER_ROUND_AND_DEVICE,
    REPLICATED,
    spread,
)
from fedprox.engine.compiled.aggregation import Arrived, Collector, Result, collector, keeping
from fedprox.engine.compiled.client_step import (
    Broadcast,
    ClientStep,
    LaneState,
    LocalLoss,
    Stop,
    contexts_of,
    mark_done,
    round_hparams,
    steps_taken,
)
from fedprox.engine.compiled.gradients import Measured, exchange_gradients
from fedprox.engine.compiled.lanes import (
    Ahead,
    Clock,
    Until,
    Watch,
    before_tick,
    begin_watch,
    choose,
    deadline,
    entries,
    example_rows,
    expanded,
    from_all_devices,
    over,
    part_of_device,
    put,
    put_cohort,
    run_segments,
    squeezed,
    take_cohort,
    where_lanes,
    zeros_like,
)
from fedprox.engine.compiled.layout import Layout
from fedprox.engine.planning.batch_plan import BatchPlan, Ticks
from fedprox.engine.planning.reads import Exchange
from fedprox.engine.planning.round_work import steps_of_run
from fedprox.features import Features, index_of, look_up
from fedprox.model import Params, beside, trainable, with_base
from fedprox.parts.part import LocalGradient, Screened, mean_if_screened, random_key
from fedprox.precision import real_type
from fedprox.protocol.method import Method


class Server(NamedTuple):
    """The states that rounds change. The program reuses their memory, so it invalidates them.

    Attributes:
        state: The server's state, leaves (points, ...).
        client_state: State of clients, leaves (devices * `Layout.held`, points, ...); None for a
            method without client state. In a call of one round, they are the clients at its
            places.
    """

    state: State
    client_state: ClientState


class Inputs(NamedTuple):
    """The inputs of some rounds.

    Attributes:
        hparams: The hyperparameters, arrays (points,).
        x: Features of the training rows.
        y: Labels of the training rows.
        plan: The batch plan.
        exchange: How gradients are read before the work; None if the method does not.
        count: Number of rounds of the plan to run, int32.
        held: Where the client at each place is in `Server.client_state`, int32 (R, devices,
            places), out of range for none. None for a method without client state and for calls of
            one round.
        until: When the passes of the round end, by the clock; None without a clock.
    """

    hparams: Any
    x: Features
    y: Any
    plan: BatchPlan
    exchange: Exchange | None
    count: Any
    held: Any = None
    until: Until | None = None


class Local(NamedTuple):
    """The clients after a round.

    Attributes:
        params: Local models (slots, points, ...), zero in empty slots; None if gradients are not
            measured.
        steps: Steps taken, int32 (slots, points); None if clients take the planned steps.
    """

    params: Params | None
    steps: jax.Array | None


class After(NamedTuple):
    """The results of some rounds.

    Attributes:
        state: The server's state.
        problem_state: The state that defined the last round's local problems; None if gradients are
            not measured.
        local: The last round's clients.
        steps: Steps of all clients and rounds, int32 (points,); None if clients take the planned
            steps.
        before: The last round's client state before that round, leaves (devices * places, points,
            ...); None if gradients are not measured.
        client_state: State of clients, as in `Server`.
        flagged: Which updates screening flagged, bool (points, rounds, jobs): the slots' jobs,
            followed by those of the first cohort; None without screening.
    """

    state: State
    problem_state: State | None
    local: Local
    steps: jax.Array | None
    before: ClientState
    client_state: ClientState
    flagged: jax.Array | None


def rounds_program(method: Method, layout: Layout, mesh: Mesh, rows: tuple[Any, ...]) -> Wrapped:
    """Compile-once program for up to `layout.shape.rounds` rounds."""

    def rounds(base: Any, server: Server, inputs: Inputs) -> After:
        run = RoundsProgram(method, base, layout).rounds
        after: After = (run if layout.batched else point_by_point(run))(server, inputs)
        return after

    same: Any = REPLICATED
    after = After(same, same, same, same, PER_DEVICE, PER_DEVICE, flagged=same)
    inputs = inputs_spec(rows, exchange=method.algorithm.first.reads)
    specs = (same, Server(same, PER_DEVICE), inputs)
    return spread(mesh, rounds, specs, out_specs=after, donated=(1,))


def inputs_spec(rows: tuple[Any, ...], *, exchange: bool, clock: bool = False) -> Inputs:
    """How the inputs of rounds are spread over the devices."""
    split: Any = PER_ROUND_AND_DEVICE
    same: Any = REPLICATED
    x, y = rows
    return Inputs(
        same,
        x,
        y,
        BatchPlan(split, split, same, same, same, same, same),
        Exchange(split, same) if exchange else None,
        same,
        same,
        same if clock else None,
    )


class _Carry(NamedTuple):
    """The values that a round changes from tick to tick.

    Attributes:
        lanes: The client of each lane.
        sums: The messages so far, as the `Collector` holds them.
        local: The finished clients.
        client_state: State of the cohort's clients, updated for finished clients.
        watch: The looks at the clock; None without a clock.
    """

    lanes: LaneState
    sums: Any
    local: Local
    client_state: ClientState
    watch: Watch | None


class RoundsProgram:
    """Some rounds on one device.

    Args:
        method: The method that is trained.
        base: `Model.base`, whose arrays are traced.
        layout: The shapes of its programs.
        clock: The clock by which clients stop; None if they take all planned steps.
        apart: Whether messages are kept as they are, for a node that sends each.
    """

    def __init__(
        self,
        method: Method,
        base: Any,
        layout: Layout,
        clock: Clock | None = None,
        *,
        apart: bool = False,
    ) -> None:
        model, first = with_base(method.protocol.model, base), method.algorithm.first
        self.algorithm, self.solver = method.algorithm, method.solver
        self.layout, self.room, self.parts = layout, layout.room, method.parts
        self.reduction = method.reduction
        self.always_updates = any(part.always_updates for part in self.parts)
        self.keep_local = method.protocol.evaluation.gradients
        self.timed, self.clock = clock is not None, cast("Clock", clock)
        self.client = ClientStep(
            *(model, self.algorithm, self.solver, layout),
            *(self.timed, local_gradient_of(method)),
        )
        self.read = features_reader(method.protocol.federation.augment)
        self.second_pass: RoundsProgram | None = None
        size, personal = self.algorithm.client.size, self.algorithm.personal
        if personal is not None and personal.subproblem is not None:
            second = replace(method, algorithm=second_pass(self.algorithm))
            self.second_pass = RoundsProgram(second, base, layout, clock)
            self.second_pass.keep_local = False
            # its messages say nothing, so nothing but screening reads them
            screening = self.reduction._replace(change=None, rule=None)
            size_of_second = second.algorithm.client.size
            self.second_pass.collector = collector(screening, size_of_second, self.room)
        self.collector: Collector = (
            keeping(self.reduction, self.room)
            if apart
            else collector(self.reduction, size, self.room)
        )
        classes = method.protocol.classes if first.labels else 0
        probes = self.algorithm.probed(model.shapes)
        self.measured = Measured(first.gradient, first.loss, classes, probes)
        screen = self.reduction.screen if first.exchange else None
        self.exchange_gradients = exchange_gradients(
            method, model, layout, self.measured, screen, clock
        )

    def rounds(self, server: Server, inputs: Inputs) -> After:
        """The first `inputs.count` rounds of the plan."""
        held, (state, client_state) = inputs.held, server
        keep = self.keep_local
        shared = held is not None  # the state of the clients of all rounds

        def cohort_state(client_state: ClientState, r: Any) -> ClientState:
            return take_cohort(client_state, held[r]) if shared else client_state

        def body(r: jax.Array, carry: After) -> After:
            now = plan_of_round(inputs, r)
            cohort = cohort_state(carry.client_state, r)
            one = Round(self, Server(carry.state, cohort), inputs, *now).run()
            if shared:
                new = put_cohort(carry.client_state, held[r], one.client_state)
                one = one._replace(client_state=new)
            taken = jax.tree.map(lambda s: s.sum(axis=0), one.local.steps)
            flags = jax.tree.map(
                lambda all_, new: all_.at[:, r].set(new.T), carry.flagged, one.flagged
            )
            return one._replace(
                problem_state=one.problem_state if keep else None,
                steps=jax.tree.map(jnp.add, carry.steps, taken),
                before=cohort if keep else None,
                flagged=flags,
            )

        if shared:
            client_state = from_all_devices(client_state)
        first_cohort = cohort_state(client_state, 0)

        def first_local(r: jax.Array) -> Local:
            now, _ = plan_of_round(inputs, r)
            broadcast = Broadcast(state, self.hparams(inputs.hparams, now))
            return self.initial_carry(broadcast, first_cohort, now).local

        local = zeros_like(jax.eval_shape(first_local, jax.ShapeDtypeStruct((), jnp.int32)))
        jobs = self.room.slots + self.room.exchange_slots
        flags = (inputs_points(inputs), self.layout.shape.rounds, jobs)
        initial = After(
            state,
            state if keep else None,
            local,
            jax.tree.map(lambda s: s.sum(axis=0), local.steps),
            first_cohort if keep else None,
            client_state,
            jnp.zeros(flags, bool) if self.reduction.screen else None,
        )
        after = jax.lax.fori_loop(0, inputs.count, body, initial)
        # leaf by leaf, since a vector of all local models would be one more copy of them
        local, steps = jax.tree.map(lambda a: jax.lax.psum(a, AXIS), (after.local, after.steps))
        if shared:
            after = after._replace(client_state=part_of_device(after.client_state))
        return after._replace(local=local, steps=steps)

    def is_late(self, taken: jax.Array, planned: jax.Array) -> jax.Array:
        """Whether clients that took these steps by the clock do not count."""
        return taken < (planned if self.algorithm.stragglers == "drop" else 1)

    def hparams(self, hparams: HParams, plan: BatchPlan) -> HParams:
        """The hyperparameters of a round with this plan, arrays (points,)."""
        hparams = round_hparams(hparams, plan.rate, plan.participation)
        key = random_key(plan.noise_key)
        for part in self.parts:
            hparams = jax.vmap(part.hparams, (0, None))(hparams, key)
        return hparams

    def initial_carry(
        self, broadcast: Broadcast, client_state: ClientState, plan: BatchPlan
    ) -> _Carry:
        """The carry before the first tick: idle lanes, no messages, no local models."""
        lanes_here = self.layout.shape.lanes
        params = jax.vmap(self.algorithm.server.params)(broadcast.state)
        points = len(broadcast.hparams["learning_rate"])
        own = self.measured.like(trainable(params))

        like = jax.eval_shape(
            partial(self.contexts, plan, points=points),
            jax.ShapeDtypeStruct((lanes_here,), jnp.int32),
            jax.tree.map(lambda a: jax.ShapeDtypeStruct((lanes_here, *a.shape), a.dtype), own),
            jax.tree.map(
                lambda a: jax.ShapeDtypeStruct((lanes_here, *a.shape[1:]), a.dtype), client_state
            ),
        )
        context = zeros_like(like._replace(relative_size=None))
        context = context._replace(relative_size=jnp.ones((lanes_here, points)))  # it divides
        zeros = jnp.zeros(lanes_here)
        stop = zeros if self.timed else None
        lanes = self.client.begin_all(broadcast, context, zeros, stop)
        lanes = mark_done(lanes, jnp.ones(lanes_here, bool))
        steps = jnp.zeros(lanes_here, jnp.int32)
        messages, _ = jax.eval_shape(self.client.message_all, lanes, broadcast, steps)
        sums = self.collector.begin(messages, client_state)
        local = jax.tree.map(
            lambda a: jnp.zeros((self.room.slots, *a.shape[1:]), a.dtype), self.local_of(lanes)
        )
        return _Carry(lanes, sums, local, client_state, None)

    def contexts(
        self, plan: BatchPlan, slot: jax.Array, own: LocalLoss, state: ClientState, points: int
    ) -> ClientContext:
        """The contexts of the round's clients in `slot` (lanes,), leaves (lanes, points, ...)."""
        return contexts_of(self.parts, plan.jobs, slot, own, state, points, plan.noise_key)

    def local_of(self, lanes: LaneState) -> Local:
        """The lanes' clients as they are stored after their job."""
        model = beside(lanes.params, lanes.context.model_state)
        return Local(model if self.keep_local else None, steps_taken(lanes))


class Round:
    """One round on one device.

    Args:
        program: The functions and shapes that all rounds share.
        server: The states before the round.
        inputs: The inputs of all rounds.
        plan: This device's part of the round's plan.
        exchange: This device's part of the plan for reading gradients; None if the method does not.
    """

    def __init__(
        self,
        program: RoundsProgram,
        server: Server,
        inputs: Inputs,
        plan: BatchPlan,
        exchange: Exchange | None,
    ) -> None:
        self.program, self.before, self.x, self.y = program, server, inputs.x, inputs.y
        self.plan, self.jobs, self.exchange = plan, plan.jobs, exchange
        self.until, self.began = inputs.until, jnp.float32(0)
        self.hparams = program.hparams(inputs.hparams, plan)
        self.places = plan.place % max(program.room.places, 1)  # on this device
        self.broadcast = Broadcast(server.state, self.hparams)
        self.own, self.late = LocalLoss(), jnp.zeros(program.room.slots, bool)
        self.screened: Screened | None = None
        if exchange is not None:
            self.read_first(exchange)
        if program.second_pass is not None:
            until = self.until and self.until._replace(local=self.until.personal)
            second = Round(program.second_pass, server, inputs._replace(until=until), plan, None)
            second.late = self.late
            after, _ = second.aggregate()
            self.before = server._replace(client_state=after.client_state)

    def read_first(self, exchange: Exchange) -> None:
        """Compute the clients' own gradients and losses, and the first cohort's mean gradient."""
        algorithm, state = self.program.algorithm, self.before.state
        received = self.received if algorithm.server.received and algorithm.first.measures else None
        models = None if algorithm.first.probe is None else jax.vmap(algorithm.first.probe)(state)
        read = self.program.exchange_gradients(
            *(jax.vmap(algorithm.server.params)(state), self.x, self.y, exchange, self.until),
            *(received, models),
        )
        self.own, self.screened, self.late = read.own, read.screened, read.late
        if algorithm.first.exchange is not None:
            mean = mean_if_screened(read.sums, read.screened)
            state = jax.vmap(algorithm.first.exchange)(state, mean, self.hparams)
            self.broadcast = Broadcast(state, self.hparams)

    def received(self, slot: jax.Array) -> Params:
        """The parameters that the clients of jobs received, leaves (lanes, points, ...)."""
        points = len(self.hparams["learning_rate"])
        context = self.program.contexts(self.plan, slot, LocalLoss(), None, points)
        assert self.program.algorithm.server.received is not None
        at_points = jax.vmap(self.program.algorithm.server.received)
        return jax.vmap(at_points, in_axes=(None, 0))(self.before.state, context)

    def run(self) -> After:
        """Run all jobs, and update the server's state."""
        return self.update(*self.aggregate())

    def aggregate(self) -> tuple[Result, Local]:
        """Run all jobs, and aggregate their messages."""

        def all_done(carry: _Carry) -> jax.Array:
            return jnp.all(cast("Stop", carry.lanes.stop).done)

        carry = self.program.initial_carry(self.broadcast, self.before.client_state, self.plan)
        if self.program.timed:
            # the passes before have ended
            watch = begin_watch(self.program.clock, (self.own, self.late, self.before.client_state))
            self.began, carry = watch.seconds, carry._replace(watch=watch)
        stops, ahead = self.program.client.stops, self.program.layout.ahead
        # how many ticks follow is unknown where clients stop; a line search reads rows by itself
        known = not stops and not self.program.solver.searches_line
        carry = run_segments(
            self.plan.ends,
            self.tick,
            self.end_jobs,
            carry,
            begin_jobs=self.begin_jobs,
            idle=all_done if stops else None,
            ahead=Ahead(ahead, self.batches) if ahead > 1 and known else None,
        )
        key = random_key(self.plan.noise_key)
        end = self.program.collector.end
        return end(carry.sums, carry.client_state, self.jobs, key), carry.local

    def begin_jobs(self, slot: jax.Array, carry: _Carry) -> _Carry:
        """Begin the jobs in `slot` (lanes,), -1 for none."""
        # read client state from before the round: if it were read from the carry, XLA would copy
        # all of it whenever a job ends
        state = entries(self.before.client_state, entries(self.places, slot))
        own = entries(self.own, slot)
        points = len(self.hparams["learning_rate"])
        context = self.program.contexts(self.plan, slot, own, state, points)
        stop = None
        if self.until is not None:
            stop = deadline(self.began, self.until.local, entries(self.until.due, slot))
            stop = jnp.where(entries(self.late, slot), 0.0, stop)
        begin_all = self.program.client.begin_all
        fresh = begin_all(self.broadcast, context, entries(self.jobs.gamma, slot), stop)
        return carry._replace(lanes=where_lanes(slot >= 0, fresh, carry.lanes))

    def batches(self, first: jax.Array) -> Any:
        """The batches of the ticks from `first` that are read at once, leaves (ticks, ...)."""
        ticks = first + jnp.arange(self.program.layout.ahead)
        return jax.vmap(self.batch)(entries(self.plan.ticks, ticks))

    def batch(self, ticks: Ticks) -> tuple[Features, jax.Array, jax.Array]:
        """Features, labels and weights of the rows of a tick of all lanes."""
        real, rows = _rows_of(ticks)
        if self.program.client.moves_state:  # it must not see other rows than the mini-batch's
            rows = _repeated(rows, real)
        weights = real / ticks.size[:, None].astype(real_type())
        return *self.program.read(self.x, self.y, rows, ticks.noise), weights

    def tick(self, i: jax.Array, carry: _Carry, batch: Any = None) -> _Carry:
        """Run one tick of each lane, whose batch may have been read ahead."""
        client = self.program.client
        ticks = entries(self.plan.ticks, i)
        _, size, last, check, noise = ticks
        if self.program.timed:
            carry = self.look_at_clock(carry)
        if self.program.solver.searches_line:
            real, rows = _rows_of(ticks)
            whole = (self.x, self.y)
            first, active = rows[:, 0], real[:, 0]
            lanes = client.search_all(carry.lanes, self.broadcast, whole, first, size, active)
            return carry._replace(lanes=lanes)
        batch = self.batch(ticks) if batch is None else batch
        gradient, states = client.gradients(carry.lanes, self.broadcast, *batch, noise)
        if client.local_gradient.completes:
            words = cast("jax.Array", noise)
            gradient = client.completed(gradient, self.broadcast, size, last, words)
        lanes = client.tick_all(carry.lanes, self.broadcast, gradient, states, last, check)
        return carry._replace(lanes=lanes)

    def look_at_clock(self, carry: _Carry) -> _Carry:
        """Mark clients as done whose time is over."""
        watch = before_tick(self.program.clock, cast("Watch", carry.watch))
        stop = cast("Stop", carry.lanes.stop)
        stop = stop._replace(done=stop.done | (watch.seconds >= stop.deadline))
        return carry._replace(lanes=carry.lanes._replace(stop=stop), watch=watch)

    def end_jobs(self, slot: jax.Array, carry: _Carry) -> _Carry:
        """End the jobs in `slot` (lanes,), -1 for none, and aggregate their messages."""
        lanes, sums, local, client_state, watch = carry
        ended = slot >= 0
        place, weight, steps = entries((self.places, self.jobs.weight, self.jobs.steps), slot)
        weight = jnp.where(ended, weight, 0.0)
        if self.program.timed:
            # a round with a clock has one sweep point
            taken = cast("jax.Array", steps_taken(lanes))[:, 0]
            late = self.program.is_late(taken, steps)
            weight = jnp.where(late, 0.0, weight)
        update = self.program.client.message_all(lanes, self.broadcast, steps)
        arrived = Arrived(slot, place, weight, *update)
        sums, client_state = self.program.collector.take(sums, client_state, arrived)
        finished = self.program.local_of(lanes)
        local = put(local, jnp.where(ended, slot, self.program.room.slots), finished)
        return _Carry(mark_done(lanes, ended), sums, local, client_state, watch)

    def update(self, result: Result, local: Local) -> After:
        """Update the server's state, as if clients that are left out had not been in the cohort."""
        algorithm, hparams, flagged = self.program.algorithm, self.hparams, None
        client_state, screened, first = result.client_state, result.screened, self.screened
        always = self.program.always_updates
        has_updates = jnp.bool_(True) if always else self.plan.participation > 0
        if screened is not None:
            participation = hparams["participation"] * screened.counted
            hparams = {**hparams, "participation": participation}
            has_updates, flagged = has_updates & (screened.counted > 0), screened.flagged
        if flagged is not None and first is not None:
            # no valid g^t: discard this round's updates
            has_updates = has_updates & (first.counted > 0)
            client_state = choose(has_updates[None], client_state, self.before.client_state)
            flagged = jnp.concatenate([flagged, first.flagged])
        mean = mean_if_screened(result.sums, screened)
        after = jax.vmap(algorithm.server.update)(self.broadcast.state, mean, hparams)
        state = choose(has_updates, after, self.before.state)
        return After(state, self.broadcast.state, local, None, None, client_state, flagged)


def local_gradient_of(method: Method) -> LocalGradient:
    """The gradient, or its replacement, in a method's local steps."""
    given = partial(steps_of_run, method), method.protocol.evaluations
    steps = (part.local_gradient(*given) for part in method.parts)
    return next((step for step in steps if step), LocalGradient())


def features_reader(
    augment: Callable[[jax.Array, Any], Any] | None,
) -> Callable[..., tuple[Features, jax.Array]]:
    """A function (x, y, rows of all lanes, noise) -> augmented features and labels."""
    read_all = over(look_up, (None, 0))
    if augment is not None:
        augment_all = over(lambda noise, stored: augment(random_key(noise), stored), (0, 0))

    def read(
        x: Features, y: jax.Array, rows: jax.Array, noise: jax.Array | None
    ) -> tuple[Features, jax.Array]:
        stored, labels = example_rows((index_of(x), y), rows)
        return augment_all(noise, stored) if augment else read_all(x, stored), labels

    return read


def _rows_of(ticks: Ticks) -> tuple[jax.Array, jax.Array]:
    """Which rows of a tick of all lanes are no padding, and all rows, (lanes, width)."""
    real = ticks.rows >= 0
    return real, jnp.where(real, ticks.rows, ~ticks.rows)


def _repeated(rows: jax.Array, real: jax.Array) -> jax.Array:
    """Rows (lanes, width), of which the real ones come first, with copies of them as padding.

    >>> _repeated(jnp.array([[3, 5, 0, 0, 0]]), jnp.array([[1, 1, 0, 0, 0]])).tolist()
    [[3, 5, 3, 5, 3]]
    """
    count = jnp.maximum(real.sum(axis=1, keepdims=True), 1)
    return jnp.take_along_axis(rows, jnp.arange(rows.shape[1]) % count, axis=1)


def inputs_points(inputs: Inputs) -> int:
    """Number of sweep points."""
    return len(inputs.hparams["learning_rate"])


def point_by_point(run: Callable[[Server, Inputs], Any]) -> Callable[[Server, Inputs], Any]:
    """Run some rounds of one sweep point after another, so that each has the caches to itself."""

    def run_points(server: Server, inputs: Inputs) -> Any:
        def run_point(point: tuple[Server, HParams]) -> Any:
            server, hparams = expanded(point)
            after = run(swap_state(server), inputs._replace(hparams=hparams))
            return squeezed(swap_after(after))

        return swap_after(jax.lax.map(run_point, (swap_state(server), inputs.hparams)))

    # client state and local models have their points in the second axis
    def swap(tree: Any) -> Any:
        return jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), tree)

    def swap_state(server: Server) -> Server:
        return server._replace(client_state=swap(server.client_state))

    def swap_after(after: Any) -> Any:
        names = {"local", "before", "client_state"} & set(after._fields)
        return after._replace(**{name: swap(getattr(after, name)) for name in names})

    return run_points


def plan_of_round(inputs: Inputs, r: jax.Array) -> tuple[BatchPlan, Exchange | None]:
    """This device's part of the plans for round r."""
    now, exchange = entries(inputs.plan, r), inputs.exchange
    ticks, ends = squeezed((now.ticks, now.ends))
    return now._replace(ticks=ticks, ends=ends), exchange and exchange_of_round(exchange, r)


def exchange_of_round(exchange: Exchange, r: jax.Array) -> Exchange:
    """This device's part of the plan for reading gradients in round r."""
    now = entries(exchange, r)
    return now._replace(reading=squeezed(now.reading))
