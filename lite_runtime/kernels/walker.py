"""The native part of a run: execute a program's steps, synchronise workers between them, wait for the next run.

A program is int64 words: step records one after the other. `context` describes its execution, in words: [0] address of
the program, [1] its length, [2] address of the table of bases, [3] of the kernels' addresses (a record's first word is
an index into it), [4] of the clock, or 0, [5] steps, [6] address of a function that reads the time, where processors
have no counter that programs may read (the operation `clock`). A clock holds two readings, before and after, for each
step of each worker: (workers, steps, 2); a step in a loop has the beginning of its first turn and the sum of all turns,
a step that a jump left out zeros.

`sync` is shared by all workers, one counter a cache line: [0] arrived at the barrier, [8] barrier generation,
[16] ticket: the workers of the latest run, and above bit 16 its number, [24] the run's context, [32] not 0: a run is
about to begin, [40] address of a function that yields the processor, [41] polls before it is called, [42] address of a
function that returns the current processor's number, or 0, [48 + worker] that number when the worker last read it.
"""

from llvmlite import ir
from numba import int64, types
from numba.extending import intrinsic

from lite_runtime.native.codegen.operations import call
from lite_runtime.native.simd import address, device, entry, i64p, num, ptr, u8p
from lite_runtime.steps.control import GoTo
from lite_runtime.steps.declaration import FLAGS, KERNEL, LENGTH, named

GO_TO = named(GoTo)

_WORDS = types.CPointer(types.int64)
PROGRAM, WORDS, BASES, TABLE, CLOCK, STEPS, ASK = range(7)
ARRIVED, GENERATION, TICKET, JOB, COMING, GIVE_WAY, PATIENCE, WHERE, PLACES = 0, 8, 16, 24, 32, 40, 41, 42, 48
NUMBER = 16
"""Bits of a ticket from here on count runs; the bits below are the number of workers that take part."""
PARALLEL = 1
"""Flag of a step whose work is shared; without it only worker 0 executes the step."""
MEET = 2
"""Flag of a step before which all workers must have finished the earlier steps."""
JUMP = 4
"""Flag of a `GoTo`, which the walker itself executes. All workers read its condition, so it has the flag MEET."""


@intrinsic
def call_kernel(typing, function, step, bases, worker, workers):
    """Call the kernel at an address."""
    sig = types.void(types.int64, _WORDS, _WORDS, types.int64, types.int64)

    def lower(context, builder, sig, args):
        words, int64 = ir.IntType(64).as_pointer(), ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [words, words, int64, int64])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def call_void(typing, function):
    """Call a function without arguments at an address."""
    sig = types.void(types.int64)

    def lower(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def call_int(typing, function):
    """The result, a C int, of a function without arguments at an address."""
    sig = types.int64(types.int64)

    def lower(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), ir.IntType(64))

    return sig, lower


@intrinsic
def pause(typing):
    """Tell the processor that this is a spin loop."""
    sig = types.void()

    def lower(context, builder, sig, args):
        call(builder, "pause", 1)
        return context.get_dummy_value()

    return sig, lower


@intrinsic
def fetch_add(typing, words, i, value):
    """Atomically add to words[i]; return the previous value."""
    sig = types.int64(_WORDS, types.int64, types.int64)

    def lower(context, builder, sig, args):
        return builder.atomic_rmw("add", builder.gep(args[0], [args[1]]), args[2], "seq_cst")

    return sig, lower


@intrinsic
def peek(typing, words, i):
    """words[i], with what the other workers last wrote to it."""
    sig = types.int64(_WORDS, types.int64)

    def lower(context, builder, sig, args):
        return builder.load_atomic(builder.gep(args[0], [args[1]]), "acquire", 8)

    return sig, lower


@intrinsic
def ticks(typing, ask):
    """A counter of a constant rate. ask: address of a function that gives it, where programs cannot read one."""
    sig = types.int64(types.int64)
    return sig, lambda context, builder, sig, args: call(builder, "clock", 1, *args)


@intrinsic
def i64p_of(typing, words, i):
    """Pointer to words[i]."""
    sig = _WORDS(_WORDS, types.int64)
    return sig, lambda context, builder, sig, args: builder.gep(args[0], [args[1]])


@device
def wait(sync, polls):
    """Pause in a loop that has polled this many times without success."""
    if polls < sync[PATIENCE]:
        pause()
    else:
        call_void(sync[GIVE_WAY])


@device
def meet(sync, workers):
    """Barrier: return once all workers have arrived."""
    generation = peek(sync, GENERATION)
    if fetch_add(sync, ARRIVED, 1) == workers - 1:
        fetch_add(sync, ARRIVED, -workers)
        fetch_add(sync, GENERATION, 1)
        return
    polls = 0
    while peek(sync, GENERATION) == generation:
        wait(sync, polls)
        polls += 1


@device
def walk(context, sync, worker, workers):
    """Execute a program as one of `workers`. Returns when every worker has finished it."""
    program, words = i64p(context[PROGRAM]), context[WORDS]
    bases, table = i64p(context[BASES]), i64p(context[TABLE])
    clocked = context[CLOCK] != 0
    clock = i64p(context[CLOCK] + 16 * worker * context[STEPS])
    at = begin = 0
    while at < words:
        step = i64p_of(program, at)
        flags = step[FLAGS] & 7
        if workers > 1 and flags & MEET:
            meet(sync, workers)
        if clocked:
            begin = ticks(context[ASK])
            if clock[0] == 0:
                clock[0] = clock[1] = begin
        after, steps = step[LENGTH], 1
        if flags & PARALLEL:
            call_kernel(table[step[KERNEL]], step, bases, worker, workers)
        elif flags & JUMP:
            condition = ptr(step, bases, GO_TO.condition)
            if condition == 0 or int64(u8p(condition)[0]) == num(step, GO_TO.when):
                after, steps = num(step, GO_TO.words), num(step, GO_TO.steps)
        elif worker == 0:
            call_kernel(table[step[KERNEL]], step, bases, 0, 1)
        if clocked:
            clock[1] += ticks(context[ASK]) - begin
            clock = i64p_of(clock, 2 * steps)
        at += after
    if workers > 1:
        meet(sync, workers)


@entry(types.void(_WORDS))
def alone(context):
    """Execute a program with no other worker."""
    walk(context, context, 0, 1)


@device
def processor(sync, worker):
    """The number of the processor that this worker is on; a number of its own where the system does not tell."""
    return call_int(sync[WHERE]) if sync[WHERE] != 0 else -1 - worker


@entry(types.void(_WORDS, _WORDS, types.int64))
def lead(context, sync, workers):
    """Start the other workers and execute a program as worker 0 of `workers`."""
    sync[JOB] = address(context)
    ticket = peek(sync, TICKET)
    fetch_add(sync, TICKET, (((ticket >> NUMBER) + 1) << NUMBER) + workers - ticket)
    fetch_add(sync, COMING, -peek(sync, COMING))
    sync[PLACES] = processor(sync, 0)
    walk(context, sync, 0, workers)


@device
def place(sync, worker):
    """Record which processor this worker is on; return whether a worker with a lower number was last seen on the
    same."""
    here = processor(sync, worker)
    sync[PLACES + worker] = here
    met = False
    for other in range(worker):
        met |= sync[PLACES + other] == here
    return met


@entry(types.void(_WORDS, _WORDS, types.int64, types.int64))
def serve(sync, state, polls, worker):
    """Take part in every run that includes this worker; return after this many consecutive polls without a run.

    state: [0] the last ticket read; [1] set to 1 if it returns because it shares a processor with another worker; [2]
    not 0: ignore that. All of this is native code, so workers do not need Python's global lock for a run.
    """
    idle = coming = 0
    state[1] = place(sync, worker) and state[2] == 0
    while state[1] == 0 and (idle < polls or coming != 0):
        # In this order: once a run is no longer about to begin, its ticket is written.
        coming = peek(sync, COMING)
        ticket = peek(sync, TICKET)
        if ticket == state[0]:
            wait(sync, 0)
            idle += 1
        else:
            idle = 0
            state[0] = ticket
            workers = ticket & ((1 << NUMBER) - 1)
            if worker < workers:
                walk(i64p(peek(sync, JOB)), sync, worker, workers)
                state[1] = place(sync, worker) and state[2] == 0


@entry(types.void(_WORDS))
def tick(out):
    """out[0] = the clock's counter; out[1]: as [6] of `context`."""
    out[0] = ticks(out[1])
