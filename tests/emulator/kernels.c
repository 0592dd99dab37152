/* Kernels on fibers. A block's threads are fibers, each of which runs until it
 * meets a barrier or a warp operation; then another one runs. The seed decides
 * the order of warps, and of the lanes in them. Only one block of one kernel
 * runs at a time, under the machine's lock.
 *
 * A fiber is entered once by makecontext; after that setjmp and longjmp
 * switch, because they make no system call. Within a warp each lane goes
 * straight on to the next; the scheduler is asked when all have had their
 * turn. */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its longjmp refuses to switch stacks */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "fibers.h"
#include "kernel.h"
#include "gpu.h"
#include "tests/harness/suite.h"

#if HARNESS_SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define UNCHECKED __attribute__((noinline, no_sanitize_address))
#define LEAVING(save, stack, bytes)                                            \
    __sanitizer_start_switch_fiber(save, stack, bytes)
#define ARRIVED(saved, stack, bytes)                                           \
    __sanitizer_finish_switch_fiber(saved, stack, bytes)
#else
#define UNCHECKED __attribute__((noinline))
#define LEAVING(save, stack, bytes) ((void)(save), (void)(stack), (void)(bytes))
#define ARRIVED(saved, stack, bytes) LEAVING(saved, stack, bytes)
#endif

/* The compiler's own pair takes a few instructions. The library's longjmp takes
 * many, and under the address sanitizer makes a system call each time; clang
 * has only that on some machines. */
#if HARNESS_SANITIZED || defined(__x86_64__)
typedef void *saved_context[5];
#define save_context(buffer) __builtin_setjmp(buffer)
#define leave_for(target) __builtin_longjmp(target, 1)
#else
typedef jmp_buf saved_context;
#define save_context(buffer) _setjmp(buffer)
#define leave_for(target) _longjmp(target, 1)
#endif

/* A separate function: gcc assumes that only a call can return to a saved
 * context. */
UNCHECKED static void go_to(saved_context target) {
    leave_for(target);
}

enum {
    LANES = 32,
    MOST_WARPS = MOST_THREADS / LANES,
    STACK = 256 * 1024,
    STACK_GUARD = 4096,
    NAMED_LIMIT = 48 * 1024,   /* for arrays that a kernel declares itself */
    SHARED_LIMIT = 227 * 1024, /* of compute capability 9.0 */
    SHARED_LEAST = 99 * 1024,  /* of 8.6 and 8.9; 8.0 has more */
    SHARED_STEP = 1024,        /* what CP_DYNAMIC is aligned to */
    SHARED_GUARD = 1 << 16
};

dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef enum { RUNNING, AT_BLOCK, AT_WARP, AT_OBJECT, ENDED } fiber_state;

typedef struct {
    saved_context resume_at;
    char *stack;      /* NULL: never entered */
    const char *file; /* where it waits */
    int line;
    bool orders;        /* orders memory: a barrier does, a shuffle does not */
    const void *object; /* the object it waits for, if any */
} fiber;

static fiber fibers[MOST_THREADS];
static fiber_state states[MOST_THREADS]; /* separate, because they are
                                            searched */
static saved_context scheduler_context;
static int current;

/* The running warp: how many lanes are left, and the next one. */
static struct { int first, lanes, left, lane, stride; } turn;
static int to_enter; /* the thread that the scheduler is asked to resume */
static bool woken;   /* threads were woken that are not in a run list yet */
static bool broken;  /* the block, which has an error */

/* The values of a warp's lanes, the lanes whose values they ask for, and the
 * results once all have arrived. */
static float brought[MOST_THREADS], given[MOST_THREADS];
static int source_lane[MOST_THREADS];

static const operation *job; /* the kernel that runs */
static uint64_t block_serial;
static size_t shared_bytes;
static unsigned char *dynamic_start; /* NULL: no launch has asked */

/* Tell the address sanitizer which stack comes next. */
static void *fake_of_scheduler, *fake_of_fiber[MOST_THREADS];
static const void *scheduler_stack;
static size_t scheduler_stack_bytes;
static bool from_scheduler;

static void before_fiber(int number) {
    LEAVING(&fake_of_scheduler, fibers[number].stack, STACK);
    from_scheduler = true;
}

static void back_in_fiber(void *saved) {
    ARRIVED(saved, from_scheduler ? &scheduler_stack : NULL,
            from_scheduler ? &scheduler_stack_bytes : NULL);
}

/* The next thread of the warp that can run; -1: all have had their turn. */
static int next_thread(void) {
    while (turn.left > 0) {
        const int lane = turn.lane;
        turn.lane = (lane + turn.stride) & (LANES - 1);
        turn.left--;
        if (lane < turn.lanes && states[turn.first + lane] == RUNNING)
            return turn.first + lane;
    }
    return -1;
}

static void now_runs(int number) {
    current = number;
    threadIdx = (dim3){(unsigned)number, 0, 0};
}

/* The compiler sees no path from one fiber's code to another's, and would cache
 * the variables above. */
static void others_have_run(void) {
    __asm__ volatile("" ::: "memory");
}

/* Switch from a fiber to the next, or to the scheduler, and back later. */
UNCHECKED static void pause_fiber(void) {
    const int number = current;
    if (save_context(fibers[number].resume_at) == 0) {
        const int next = next_thread();
        if (next >= 0 && fibers[next].stack != NULL) {
            now_runs(next);
            from_scheduler = false;
            LEAVING(&fake_of_fiber[number], fibers[next].stack, STACK);
            go_to(fibers[next].resume_at);
        }
        to_enter = next;
        LEAVING(&fake_of_fiber[number], scheduler_stack, scheduler_stack_bytes);
        go_to(scheduler_context);
    }
    others_have_run();
    back_in_fiber(fake_of_fiber[current]);
}

/* A fiber runs one thread after another for as long as the process lives. */
static void fiber_main(void) {
    back_in_fiber(NULL);
    for (;;) {
        job->thread(job->arguments);
        states[current] = ENDED;
        pause_fiber();
    }
}

static char *new_stack(void) {
    char *stack = mmap(NULL, STACK + STACK_GUARD, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        fprintf(stderr, "emulator: no memory for a fiber\n");
        abort();
    }
    mprotect(stack, STACK_GUARD, PROT_NONE);
    return stack + STACK_GUARD;
}

/* Run a thread and those after it until their next barriers or ends, or until
 * one that was never entered. */
UNCHECKED static void resume(int number) {
    fiber *f = &fibers[number];
    now_runs(number);
    if (save_context(scheduler_context) != 0) {
        others_have_run();
        ARRIVED(fake_of_scheduler, NULL, NULL);
        return;
    }
    if (f->stack != NULL) {
        before_fiber(number);
        go_to(f->resume_at);
    }
    static ucontext_t fresh, caller;
    f->stack = new_stack();
    getcontext(&fresh);
    fresh.uc_stack.ss_sp = f->stack;
    fresh.uc_stack.ss_size = STACK;
    fresh.uc_link = NULL;
    makecontext(&fresh, fiber_main, 0);
    before_fiber(number);
    swapcontext(&caller, &fresh);
}

/* Abandon fibers whose wait cannot end, with their stacks. */
static void give_up(int threads) {
    for (int i = 0; i < threads; i++)
        if (states[i] != ENDED && fibers[i].stack != NULL) {
#if HARNESS_SANITIZED
            __asan_unpoison_memory_region(fibers[i].stack, STACK);
#endif
            munmap(fibers[i].stack - STACK_GUARD, STACK + STACK_GUARD);
            fibers[i].stack = NULL;
        }
}

/* What kernels call. */

static void stop_at(bool of_block, const char *file, int line) {
    states[current] = of_block ? AT_BLOCK : AT_WARP;
    fibers[current].file = file;
    fibers[current].line = line;
    pause_fiber();
}

void emulator_barrier(bool of_block, const char *file, int line) {
    fibers[current].orders = true;
    stop_at(of_block, file, line);
}

int this_thread(void) {
    return current;
}

int block_threads(void) {
    return (int)job->threads;
}

size_t dynamic_bytes(void) {
    return job->shared;
}

void wait_for(const void *object, const char *file, int line) {
    states[current] = AT_OBJECT;
    fibers[current].object = object;
    fibers[current].file = file;
    fibers[current].line = line;
    pause_fiber();
}

void wake(const void *object) {
    for (int i = 0; i < (int)job->threads; i++)
        if (states[i] == AT_OBJECT && fibers[i].object == object) {
            states[i] = RUNNING;
            woken = true;
        }
}

void accuse_block(const char *format, ...) {
    char text[400];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (!broken)
        complain(cudaErrorLaunchFailure,
                 "kernel %s, block (%u, %u, %u), thread %d: %s", job->name,
                 blockIdx.x, blockIdx.y, blockIdx.z, current, text);
    broken = true;
}

void *emulator_aligned(const void *at, size_t size) {
    if ((uintptr_t)at % size != 0)
        accuse_block("%zu bytes at once, at no multiple of %zu", size, size);
    return (void *)(uintptr_t)at;
}

void emulator_converge(const char *file, int line) {
    fibers[current].orders = false;
    stop_at(false, file, line);
}

float emulator_exchange(float number, int lane, const char *file, int line) {
    const int me = current;
    brought[me] = number;
    source_lane[me] = lane & (LANES - 1);
    emulator_converge(file, line);
    return given[me];
}

void emulator_shared(void *start, size_t bytes, const char *name,
                     uint64_t *block) {
    if (*block == block_serial)
        return;
    *block = block_serial;
    memset(start, 0xFF, bytes);
    shared_bytes += bytes;
    watch_shared(start, bytes, name);
}

unsigned char *emulator_dynamic(void) {
    return dynamic_start;
}

/* A launch's dynamic memory ends, up to a step, at an inaccessible page. The
 * bytes in between are poison, like those before it. */
static size_t dynamic_room(void) {
    return (job->shared + SHARED_STEP - 1) / SHARED_STEP * SHARED_STEP;
}

static void prepare_dynamic(void) {
    enum { ROOM = SHARED_LIMIT + SHARED_STEP };
    static unsigned char *end;
    if (end == NULL) {
        const size_t mapped = ROOM + 2 * SHARED_GUARD;
        unsigned char *base =
            mmap(NULL, mapped, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED ||
            mprotect(base + SHARED_GUARD, ROOM, PROT_READ | PROT_WRITE) != 0) {
            fprintf(stderr, "emulator: no memory for a block to share\n");
            abort();
        }
        end = base + SHARED_GUARD + ROOM;
    }
    dynamic_start = end - dynamic_room();
    memset(dynamic_start - SHARED_STEP, POISON, dynamic_room() + SHARED_STEP);
    watch_shared(dynamic_start, job->shared, "what the launch shares");
}

/* Code for all of capability 8 may use as much as any of them has. */
static size_t shared_most(void) {
    return machine.hopper ? SHARED_LIMIT : SHARED_LEAST;
}

/* Check that a block's shared memory is within limits, and its writes, too. */
static bool check_shared(void) {
    const size_t all = shared_bytes + job->shared;
    const char *start = (const char *)dynamic_start;
    const size_t spare = dynamic_room() - job->shared;
    if (shared_bytes > NAMED_LIMIT || all > shared_most())
        complain(cudaErrorLaunchFailure,
                 "kernel %s shares more than %zu bytes in a block", job->name,
                 all > shared_most() ? shared_most() : (size_t)NAMED_LIMIT);
    else if (job->shared > 0 &&
             (!all_poison(start - SHARED_STEP, SHARED_STEP) ||
              !all_poison(start + job->shared, spare)))
        complain(cudaErrorLaunchFailure,
                 "kernel %s, block (%u, %u, %u): written outside of the %zu "
                 "bytes that the launch named",
                 job->name, blockIdx.x, blockIdx.y, blockIdx.z, job->shared);
    else
        return true;
    return false;
}

/* The scheduler of one block. */

static bool same_location(int one, int other) {
    const fiber *a = &fibers[one], *b = &fibers[other];
    return states[one] == states[other] &&
           (states[one] == ENDED ||
            (a->line == b->line && strcmp(a->file, b->file) == 0));
}

/* The first waiting thread from `start` on that is not at the location of
 * `other`. */
static int find_standing(int start, int threads, int other) {
    int i = start;
    while (i < threads && (states[i] == RUNNING || same_location(i, other)))
        i++;
    return i;
}

/* Report why a block cannot continue: which threads wait where. */
static bool stuck(int threads, const char *why) {
    int first = 0;
    while (states[first] == RUNNING || states[first] == ENDED)
        first++;
    const int other = find_standing(
        states[first] == AT_WARP ? first / LANES * LANES : 0, threads, first);
    char where[160] = "";
    if (other < threads && states[other] == ENDED)
        snprintf(where, sizeof where, ", thread %d has ended", other);
    else if (other < threads)
        snprintf(where, sizeof where, ", thread %d waits at line %d", other,
                 fibers[other].line);
    complain(cudaErrorLaunchFailure,
             "kernel %s, block (%u, %u, %u): %s: thread %d waits at %s:%d%s",
             job->name, blockIdx.x, blockIdx.y, blockIdx.z, why, first,
             fibers[first].file, fibers[first].line, where);
    give_up(threads);
    return false;
}

/* Release the lanes of a warp if all wait at the same warp operation, with the
 * values that they asked for; a missing lane gives NaN. False: a lane waits for
 * others that never arrive. */
static bool release_warp(int first, int lanes) {
    bool waits = false;
    for (int i = 0; i < lanes; i++) {
        waits = waits || states[first + i] == AT_WARP;
        if (states[first + i] == AT_OBJECT || states[first + i] == RUNNING)
            return true; /* others may arrive later */
    }
    if (!waits)
        return true;
    if (find_standing(first, first + lanes, first) < first + lanes)
        return false;
    for (int i = first; i < first + lanes; i++) {
        given[i] =
            source_lane[i] < lanes ? brought[first + source_lane[i]] : NAN;
        states[i] = RUNNING;
    }
    if (fibers[first].orders)
        order_warp(first / LANES);
    return true;
}

/* Run a warp's lanes, in some order, each to its next stop. */
static bool run_warp(int first, int lanes) {
    const uint64_t random = draw(UINT32_MAX);
    turn.first = first;
    turn.lanes = lanes;
    turn.left = LANES;
    turn.lane = (int)(random & 31);
    turn.stride = (int)(random >> 5 & 31) | 1;
    for (to_enter = next_thread(); to_enter >= 0;)
        resume(to_enter);
    return release_warp(first, lanes);
}

static bool can_run(int first, int lanes) {
    for (int lane = 0; lane < lanes; lane++)
        if (states[first + lane] == RUNNING)
            return true;
    return false;
}

static bool any_waits(int threads) {
    for (int i = 0; i < threads; i++)
        if (states[i] == AT_OBJECT)
            return true;
    return false;
}

static int lanes_of(int warp, int threads) {
    const int left = threads - warp * LANES;
    return left < LANES ? left : LANES;
}

static int list_ready(int *ready, int threads) {
    int count = 0;
    woken = false;
    for (int warp = 0; warp * LANES < threads; warp++)
        if (can_run(warp * LANES, lanes_of(warp, threads)))
            ready[count++] = warp;
    return count;
}

/* Run all warps until each is at a barrier of the block, is in a wait that no
 * warp can end, or has ended. Some blocks let one warp run as far as it can,
 * others switch after every stop. */
static bool run_to_barrier(int threads, bool far) {
    int ready[MOST_WARPS], count = 0, at = -1;
    order_block();
    land_copies();
    for (int i = 0; i < threads; i++)
        states[i] = RUNNING;
    woken = true;
    while (!broken) {
        instructions_complete(false);
        if (count == 0 && !woken && any_waits(threads) &&
            instructions_complete(true))
            continue;
        if (woken) {
            count = list_ready(ready, threads);
            at = -1;
        }
        if (count == 0)
            return true;
        if (at < 0 || !far)
            at = (int)draw((uint64_t)count);
        const int first = ready[at] * LANES,
                  lanes = lanes_of(ready[at], threads);
        if (!run_warp(first, lanes))
            return stuck(threads, "lanes of a warp that do not all arrive");
        if (!can_run(first, lanes)) {
            ready[at] = ready[--count];
            at = -1;
        }
    }
    give_up(threads);
    return false;
}

static bool run_block(int threads) {
    const bool far = draw(2) == 0;
    block_serial++;
    shared_bytes = 0;
    begin_block();
    watch_block();
    broken = false;
    instructions_begin();
    if (job->shared > 0)
        prepare_dynamic();
    do {
        if (!run_to_barrier(threads, far))
            return false;
        if (any_waits(threads))
            return stuck(threads, "a wait that nothing can end");
        if (find_standing(0, threads, 0) < threads)
            return stuck(threads, "a barrier that not all threads reach");
    } while (states[0] != ENDED);
    instructions_end();
    return !broken && check_shared();
}

/* Run all blocks, in some order. If one of them fails, so does the machine, and
 * its report gives the location. */
void run_kernel(const operation *kernel) {
    const dim3 grid = gridDim = kernel->grid;
    const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    uint64_t turns = 1, at = draw(blocks);
    const uint64_t stride = draw(blocks) | 1;
    while (turns < blocks)
        turns *= 2;
    open_memory(describe(kernel));
    watch_kernel(kernel->name);
    job = kernel;
    blockDim = (dim3){kernel->threads, 1, 1};
    bool fine = true;
    for (uint64_t i = 0; i < turns && fine; i++) {
        at = (at + stride) & (turns - 1);
        if (at >= blocks || at < (uint64_t)machine.skip_blocks)
            continue;
        blockIdx =
            (dim3){(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                   (unsigned)(at / grid.x / grid.y)};
        fine = run_block((int)kernel->threads);
    }
    watch_kernel(NULL);
    machine.counted.launches++;
    if (!fine)
        fail_machine();
}

cudaError_t launch(const operation *kernel, cudaStream_t given) {
    const dim3 grid = kernel->grid;
    stream *on;
    TRY(enter_stream(given, &on));
    if (countdown(&machine.fail_launch))
        return leave(complain(cudaErrorLaunchOutOfResources,
                              "launch of kernel %s failed on demand",
                              kernel->name));
    if (kernel->threads == 0 || kernel->threads > MOST_THREADS || grid.x == 0 ||
        grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 ||
        grid.z > 65535)
        return leave(complain(cudaErrorInvalidConfiguration,
                              "kernel %s with a grid of %u x %u x %u blocks of "
                              "%u threads",
                              kernel->name, grid.x, grid.y, grid.z,
                              kernel->threads));
    if (kernel->shared > shared_most())
        return leave(complain(cudaErrorInvalidValue,
                              "kernel %s with %zu bytes shared by a block",
                              kernel->name, kernel->shared));
    return leave(issue(on, operation_copy(kernel)));
}

cudaError_t emulator_launch(const char *name, void (*thread)(const void *),
                            dim3 grid, unsigned block_threads, size_t shared,
                            cudaStream_t given, const void *arguments,
                            size_t bytes) {
    const operation kernel = {.kind = KERNEL,
                              .name = name,
                              .thread = thread,
                              .grid = grid,
                              .threads = block_threads,
                              .shared = shared,
                              .arguments = (void *)(uintptr_t)arguments,
                              .argument_bytes = bytes};
    return launch(&kernel, given);
}
