/* The internals of the emulator, for its own sources: one pretended machine,
 * its streams and operations, one lock around all of it. See emulator.h
 * first. */
#ifndef EMULATOR_GPU_H
#define EMULATOR_GPU_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "emulator.h"

enum { POISON = 0xFF }; /* every byte of unwritten memory */

typedef struct CUstream_st stream;
typedef struct CUevent_st event;
typedef struct CUgraph_st graph;
typedef struct CUgraphExec_st executable;
typedef struct ncclComm communicator;

/* A point in a stream that others can wait for. An event names its latest. */
typedef struct mark {
    int references;
    bool done;
    double time;      /* pretended milliseconds */
    int64_t stream;   /* its number */
    struct mark *now; /* for a captured mark: the latest launch's */
} mark;

typedef struct meeting meeting;

/* One side of a message. A collective is messages to all and from all. */
typedef enum { ALONE, GATHERED, ADDED } part_of;
typedef struct {
    bool receives, captured;
    part_of of;
    char *at; /* sums arrive at operation.added */
    size_t bytes;
    ncclDataType_t type;
    int peer;
    bool started, done;
    uint64_t fingerprint; /* of the sent data, when it started */
    double starts, ends;  /* pretended milliseconds */
    communicator *by;
    meeting *in;
} part;

typedef enum { KERNEL, COPY, FILL, RECORD, WAIT, MESSAGES } operation_kind;

/* Something in a stream or in a graph. The kind decides which members are
 * used. */
typedef struct operation {
    operation_kind kind;
    struct operation *next;
    bool started;
    bool issued; /* by a host call, not by a graph */
    double ends; /* pretended milliseconds */

    const char *name;            /* kernel */
    void (*begin)(const void *); /* NULL, or called when it starts */
    void (*thread)(const void *);
    dim3 grid;
    unsigned threads;
    size_t shared; /* bytes of a block that the launch names */
    void *arguments;
    size_t argument_bytes;

    char *to; /* copy, and fill */
    const char *from;
    char *staged; /* NULL, or our copy of the source; then `from` is this */
    size_t to_pitch, from_pitch, width, height;
    int value;
    uint64_t fingerprint;

    mark *point;      /* record, wait */
    int stream_index; /* in a graph: its stream, among those of the capture */

    communicator *by; /* messages */
    part *parts;
    int part_count;
    char *added;  /* for a sum: [ranks] the others' data; owned */
    int64_t turn; /* among its communicator's */
    bool reached; /* by its stream... */
    bool dead;    /* ...when its rank was, on demand */
} operation;

/* For each stream of a capture: how many of its nodes come before. */
enum { MOST_CAPTURED = 64 };
typedef struct {
    int of[MOST_CAPTURED];
} history;

struct CUstream_st {
    stream *next;
    int64_t number; /* 0 for the null stream */
    int priority;
    operation *head, *tail;
    int64_t issued; /* of these */
    double clock;   /* pretended milliseconds */
    struct capture *capture;
    int stream_index; /* among the streams of the capture */
    history before;
};

struct CUevent_st {
    event *next;
    int64_t number;
    unsigned flags;
    mark *latest;
    int64_t captured; /* the number of the capture that recorded it; or 0 */
    history before;
};

/* The captured operations of some streams, in order; records and waits are not
 * nodes. */
struct CUgraph_st {
    graph *next;
    int references;
    int64_t number;
    operation *first, **end; /* where the next one goes */
    int count, streams;
    bool ranked; /* the streams had several priorities */
};

/* A graph with its own streams, except the first, which is the launching
 * stream. */
struct CUgraphExec_st {
    executable *next;
    graph *of;
    stream *streams[MOST_CAPTURED];
    mark *end; /* of the latest launch; or NULL */
    bool gone; /* destroyed while its latest launch still runs */
};

typedef struct capture {
    struct capture *next;
    int64_t number;
    graph *into;
    stream *origin;
    pthread_t thread;
    bool invalid;
} capture;

/* What a host thread waits for: an empty stream; otherwise a mark; otherwise
 * room in a stream; otherwise until all streams are empty. */
enum { MOST_ISSUED = 1024 };
typedef struct {
    const stream *empty;
    const mark *point;
    const stream *room;
} waiting;

/* When a rank of NCCL fails, and which message between two ranks is lost. */
enum { RANK_FAULTS = 64 };
typedef struct {
    enum { SOUND, DEAD, FAILING } state;
    int64_t after;
} rank_fault;
typedef struct {
    int from, to;
    int64_t left;
} message_fault;

typedef struct {
    emulator_options options;
    bool begun;
    pthread_t thread;   /* that began... */
    bool threads;       /* ...and others have called */
    uint64_t random;    /* the scheduler's state */
    uint64_t priority;  /* of streams, if the seed uses them; 0: none */
    cudaError_t failed; /* sticks to every call, as a failed context does */
    stream *streams;
    event *events;
    graph *graphs;
    executable *executables;
    capture *captures;
    int64_t numbers; /* for names */
    double changed;  /* when something was last enqueued or run */
    int64_t problems;
    emulator_statistics counted;
    int64_t fail_allocation, fail_launch, fail_copy, ignore_wait, skip_blocks;
    bool freeze_uploads, no_f8, hopper;
    int refuses; /* 1 + a rank that cannot capture; 0: none */
    message_fault drop;
    rank_fault rank_faults[RANK_FAULTS];
} machine_state;
extern machine_state machine;

/* machine.c: calls, errors, waiting. */
cudaError_t enter(void);         /* lock; an error if no call can succeed */
unsigned leave(unsigned result); /* unlock */
/* Numbers of 16 bits: a float's upper half, rounded to nearest even. */
float from_bf16(uint16_t bits);
uint16_t to_bf16(float x);
float from_f8(unsigned code); /* e4m3: its last eight bits */
/* Return if this fails; and for the body of a call: leave it. In each of the
 * three interfaces 0 is success. */
#define OR_RETURN(this)                                                        \
    do {                                                                       \
        const unsigned failure = (this);                                       \
        if (failure != 0)                                                      \
            return failure;                                                    \
    } while (0)
#define TRY(this)                                                              \
    do {                                                                       \
        const unsigned failure = (this);                                       \
        if (failure != 0)                                                      \
            return leave(failure);                                             \
    } while (0)
/* A function that returns the text of an interface's error. */
#define ERROR_TEXT(name, value, text) [name] = (text),
#define ERROR_TEXTS(function, type, list)                                      \
    const char *function(type error) {                                         \
        static const char *const texts[] = {list(ERROR_TEXT)};                 \
        return texts[error];                                                   \
    }
uint64_t draw(uint64_t below);
void changed(void);
bool countdown(int64_t *fault);
unsigned complain(unsigned error, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* returns the error */
#define accuse(...) (complain(cudaSuccess, __VA_ARGS__), machine.problems++)
cudaError_t await(waiting what);
bool run_until(const waiting *what, uint64_t most);
cudaError_t ask(waiting what);
bool sleep_for_change(void);
cudaError_t fail_machine(void);
void *take(size_t count, size_t size);           /* zeroed, never NULL */
void *copy_of(const void *from, size_t bytes);   /* NULL for NULL */
void *grown(void *list, int count, size_t size); /* room for one more */
/* List elements begin with a pointer to the next one; `list` is the address of
 * the pointer to the first. */
void enlist(void *list, void *first);
void unlist(void *list, const void *one);
bool listed(const void *list, const void *one);
void free_list(void *list);
const char *note_of_waits(void);

/* memory.c: allocations between guard pages. */
cudaError_t check_range(const void *start, size_t bytes, const char *what);
bool is_device(const void *address);
bool is_seen(
    const void *address); /* accessible to the device: its own memory, or
                             pinned */
void open_memory(const char *accessor); /* for the message of a bad access */
void close_memory(void);
void watch_memory(void);
void release_memory(void);
uint64_t fingerprint(const char *start, size_t bytes);
bool all_poison(const char *start, size_t bytes);

/* streams.c: operations and the scheduler. */
stream *resolve(cudaStream_t given);
cudaError_t find_stream(cudaStream_t given, stream **out);
cudaError_t enter_stream(cudaStream_t given, stream **out);
stream *add_stream(int64_t number);
void remove_stream(stream *which);
operation *operation_copy(const operation *from);
void operation_free(operation *what);
cudaError_t enqueue(stream *on, operation *what);
cudaError_t issue(stream *on, operation *what);
void forget_work(stream *on);
bool step(void);
void advance_streams(void);
void finish_streams(void);
mark *mark_new(const stream *on);
void mark_release(mark *point);
cudaError_t enqueue_point(stream *on, operation_kind kind, mark *point);
const char *describe(const operation *what); /* valid until the next call */
bool blocked_by_failure(waiting what, int depth);

/* graphs.c */
cudaError_t capture_operation(stream *on, operation *what);
cudaError_t capture_record(stream *on, event *what);
cudaError_t capture_wait(stream *on, event *what, bool ignored);
cudaError_t refuse_in_capture(const char *call);
cudaError_t spoil_capture(stream *on, const char *call);
int64_t graph_holding(const communicator *by); /* 0: none */
void finish_graphs(void);

/* kernels.c */
void run_kernel(const operation *kernel);
cudaError_t launch(const operation *kernel, cudaStream_t given); /* a call */

/* races.c: which kernel is watched (NULL: none), where, and what is in order.
 * Parties are the threads of a block, and agents, which work asynchronously: an
 * agent is all copies of one barrier, or all products of one warp. */
enum {
    MOST_THREADS = 1024,
    MOST_BARRIERS = 64,
    MOST_AGENTS = MOST_BARRIERS + MOST_THREADS / 32
};

/* What a party knows: for each party, until when all that it did is over. */
typedef struct {
    uint32_t until[MOST_AGENTS + MOST_THREADS];
} past;

static inline unsigned products_of(int warp) {
    return MOST_BARRIERS + (unsigned)warp;
}

void watch_kernel(const char *name);
void watch_block(void); /* a new block begins */
void watch_shared(const void *start, size_t bytes, const char *name);
void watch_read(const void *at, size_t bytes);
void watch_write(const void *at, size_t bytes);
void watch_copy(const void *at, size_t bytes, unsigned barrier);
void watch_product(const void *at, int warp);
void watch_fence(void);
void order_block(void);
void order_warp(int warp);

/* The running thread passes on its knowledge, or learns what was passed on; an
 * agent passes on what it did; a warp learns that its products until `time` are
 * over. pass_time returns the current time and advances it. */
void hand_on(past *to);
void learn(const past *from);
void hand_on_agent(past *to, unsigned agent);
void learn_products(int warp, uint32_t time);
uint32_t pass_time(void);

/* tensor.c: at a barrier that all threads of a block have reached, and when a
 * block begins. */
void land_copies(void);
void begin_block(void);

/* messages.c, nccl_communicators.c, nccl_processes.c: see nccl_meetings.h */
bool messages_startable(operation *what);
void messages_start(operation *what);
bool messages_done(const operation *what);
bool meeting_ready(const meeting *at);
bool sender_is_local(const part *what);
void meeting_complete(meeting *at);
void messages_finished(operation *what);
void messages_cancel(operation *what);
void messages_enqueued(operation *what);
void messages_describe(const operation *what, char *text, size_t bytes);
bool communicator_failed(const communicator *by);
void fail_communicators(ncclResult_t error);
void messages_arrive(void);
void finish_messages(void);
int peers(void); /* 0: this process is alone */

#endif
