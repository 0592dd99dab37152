/* Streams, events, copies, and the scheduler that decides what happens when.
 * settle() does everything that needs no decision: records and waits at the
 * heads of streams pass, copies and messages start. step() makes one decision:
 * which kernel runs next, or which started copy or message completes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* Marks and operations. */

mark *mark_new(const stream *on) {
    mark *point = take(1, sizeof *point);
    point->references = 1;
    point->stream = on->number;
    return point;
}

void mark_release(mark *point) {
    if (point == NULL || --point->references > 0)
        return;
    mark_release(point->now);
    free(point);
}

/* A copy of an operation that owns what it points to: of a template, or of a
 * graph's operation, which runs often. */
operation *operation_copy(const operation *from) {
    operation *what = copy_of(from, sizeof *from);
    what->next = NULL;
    what->arguments = copy_of(from->arguments, from->argument_bytes);
    what->staged = copy_of(from->staged, from->height * from->width);
    what->from = what->staged != NULL ? what->staged : from->from;
    what->parts =
        copy_of(from->parts, (size_t)from->part_count * sizeof *from->parts);
    return what;
}

void operation_free(operation *what) {
    if (what == NULL)
        return;
    mark_release(what->point);
    free(what->arguments);
    free(what->staged);
    free(what->added);
    free(what->parts);
    free(what);
}

const char *describe(const operation *what) {
    static char text[600];
    if (what->kind == KERNEL)
        snprintf(text, sizeof text, "kernel %s", what->name);
    else if (what->kind == COPY || what->kind == FILL)
        snprintf(text, sizeof text, "%s of %zu bytes",
                 what->kind == COPY ? "copy" : "fill",
                 what->width * what->height);
    else if (what->kind == MESSAGES)
        messages_describe(what, text, sizeof text);
    else
        snprintf(text, sizeof text, "%s an event of stream %ld",
                 what->kind == WAIT ? "wait for" : "record of",
                 what->point->stream);
    return text;
}

/* A line that says what each stream with work waits for. */
const char *note_of_waits(void) {
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    for (const stream *s = machine.streams; s != NULL; s = s->next)
        if (s->head != NULL && used + 800 < sizeof text)
            used += (size_t)sprintf(text + used, "%sstream %ld: %s",
                                    used > 0 ? "; " : "", s->number,
                                    describe(s->head));
    return text;
}

/* Streams. */

/* The stream of a handle; NULL if it has none (any more). */
stream *resolve(cudaStream_t given) {
    stream *s = machine.streams;
    while (s != NULL && s != given && (given != NULL || s->number != 0))
        s = s->next;
    return s;
}

cudaError_t find_stream(cudaStream_t given, stream **out) {
    *out = resolve(given);
    return *out != NULL ? cudaSuccess
                        : complain(cudaErrorInvalidResourceHandle,
                                   "a stream that does not exist (any more)");
}

/* Lock and find the stream. */
cudaError_t enter_stream(cudaStream_t given, stream **out) {
    *out = NULL;
    OR_RETURN(enter());
    return find_stream(given, out);
}

stream *add_stream(int64_t number) {
    stream *s = take(1, sizeof *s);
    s->number = number;
    enlist(&machine.streams, s);
    return s;
}

cudaError_t enqueue(stream *on, operation *what) {
    if (on->capture != NULL)
        return capture_operation(on, what);
    *(on->head != NULL ? &on->tail->next : &on->head) = what;
    on->tail = what;
    if (what->kind == MESSAGES)
        messages_enqueued(what);
    changed();
    /* A host that reads the destination too early must see NaN. */
    if (on->head == what && what->kind == COPY && !is_device(what->to))
        advance_streams();
    return cudaSuccess;
}

/* As enqueue, for a host call: a full stream makes the caller wait until an
 * operation has run. */
cudaError_t issue(stream *on, operation *what) {
    const bool counts = on->capture == NULL;
    const cudaError_t error = counts && on->issued >= MOST_ISSUED
                                  ? await((waiting){.room = on})
                                  : cudaSuccess;
    if (error != cudaSuccess) {
        operation_free(what);
        return error;
    }
    what->issued = counts;
    on->issued += counts;
    return enqueue(on, what);
}

static void pop(stream *on) {
    operation *what = on->head;
    on->issued -= what->issued;
    on->head = what->next;
    operation_free(what);
}

/* Drop all work of a stream. Its marks count as reached, so that nothing waits
 * for them. */
void forget_work(stream *on) {
    while (on->head != NULL) {
        operation *what = on->head;
        if (what->kind == RECORD)
            what->point->done = true;
        if (what->kind == MESSAGES)
            messages_cancel(what);
        pop(on);
    }
}

/* Remove a stream, and report work left in it. */
void remove_stream(stream *which) {
    if (which->head != NULL)
        accuse("stream %ld ended with work left, first: %s", which->number,
               describe(which->head));
    forget_work(which);
    unlist(&machine.streams, which);
    free(which);
}

static void remove_event(event *which) {
    unlist(&machine.events, which);
    mark_release(which->latest);
    free(which);
}

/* At the end: report the streams and events that are left. */
void finish_streams(void) {
    while (machine.streams != NULL) {
        if (machine.streams->number != 0)
            accuse("stream %ld was never destroyed", machine.streams->number);
        remove_stream(machine.streams);
    }
    while (machine.events != NULL) {
        accuse("event %ld was never destroyed", machine.events->number);
        remove_event(machine.events);
    }
}

/* Copies and fills. */

static void fill(const operation *what, int value) {
    for (size_t row = 0; row < what->height; row++)
        memset(what->to + row * what->to_pitch, value, what->width);
}

static bool is_poison(const operation *what) {
    for (size_t row = 0; row < what->height; row++)
        if (!all_poison(what->to + row * what->to_pitch, what->width))
            return false;
    return true;
}

static uint64_t source_fingerprint(const operation *what) {
    uint64_t sum = 0;
    for (size_t row = 0; what->kind == COPY && row < what->height; row++)
        sum = sum * 31 +
              fingerprint(what->from + row * what->from_pitch, what->width);
    return sum;
}

/* The bytes arrive, unless either side was written since the start: then the
 * destination keeps its NaN, and the report names the side. */
static void complete_copy(const operation *what) {
    open_memory(describe(what));
    const bool same = source_fingerprint(what) == what->fingerprint;
    const bool fine = is_poison(what) && same;
    if (!fine)
        accuse("race: the %s of a %s was written while it was under way",
               same ? "destination" : "source", describe(what));
    if (!fine || what->kind == FILL)
        fill(what, fine ? what->value : POISON);
    for (size_t row = 0; fine && what->kind == COPY && row < what->height;
         row++)
        memcpy(what->to + row * what->to_pitch,
               what->from + row * what->from_pitch, what->width);
}

/* The scheduler. */

/* Durations on the pretended clock, in milliseconds: about those of a large
 * GPU, so that a trace shows what overlaps. */
static double pretended_cost(const operation *what) {
    if (what->kind == KERNEL)
        return 2e-3 + 1e-7 * (double)what->threads * (double)what->grid.x *
                          (double)what->grid.y * (double)what->grid.z;
    return what->kind == MESSAGES
               ? 0.0
               : 2e-3 + 1e-9 * (double)(what->width * what->height);
}

static void finish(stream *on) {
    operation *what = on->head;
    if (what->kind == MESSAGES)
        messages_finished(what);
    on->clock = fmax(what->ends, on->clock) + pretended_cost(what);
    pop(on);
}

/* Process the head of a stream if that needs no decision. False: nothing was
 * done. */
static bool pass_head(stream *on) {
    operation *head = on->head;
    switch (head->kind) {
    case RECORD:
        head->point->done = true;
        head->point->time = on->clock;
        pop(on);
        return true;
    case WAIT:
        if (!head->point->done)
            return false;
        on->clock = fmax(on->clock, head->point->time);
        pop(on);
        return true;
    case COPY:
    case FILL:
        if (head->started)
            return false;
        open_memory(describe(head));
        head->fingerprint = source_fingerprint(head);
        fill(head, POISON);
        head->started = true;
        return true;
    case MESSAGES:
        if (messages_done(head)) {
            finish(on);
            return true;
        }
        if (head->started || !messages_startable(head))
            return false;
        head->ends = on->clock;
        messages_start(head);
        return true;
    case KERNEL:
        if (head->started || head->begin == NULL)
            return false;
        open_memory(describe(head));
        head->begin(head->arguments);
        head->started = true;
        return true;
    default:
        return false;
    }
}

void advance_streams(void) {
    messages_arrive();
    bool again = machine.failed == cudaSuccess;
    while (again) {
        again = false;
        for (stream *s = machine.streams; s != NULL; s = s->next)
            while (s->head != NULL && pass_head(s))
                again = true;
    }
}

/* What step() does: the offer with the lowest key. */
static struct {
    stream *on;  /* its head; NULL: no offer yet */
    meeting *at; /* complete this message */
    uint64_t key;
} best;
static bool kernels_wait; /* for this step, on a mixed machine */

/* A late machine runs kernels first, then completes fills, then copies, and
 * messages when nothing else is left; an eager one does the reverse. For
 * kernels, half the seeds draw each time; with the others, streams have a fixed
 * priority. */
static void offer(stream *on, meeting *at, uint64_t late) {
    uint64_t before = 0;
    if (on->head->kind == KERNEL && machine.priority != 0)
        before =
            ((machine.priority ^ (uint64_t)on->number) * 0x9E3779B97F4A7C15u) >>
            34;
    if (machine.options.lateness == EMULATOR_EAGER)
        late = 3 - late;
    if (machine.options.lateness == EMULATOR_MIXED)
        late = (late == 0) == kernels_wait;
    const uint64_t key = late << 60 | before << 30 | draw(1 << 30);
    if (best.on != NULL && best.key < key)
        return;
    best.on = on;
    best.at = at;
    best.key = key;
}

static void offer_head(stream *on) {
    const operation *what = on->head;
    if (what->kind == KERNEL)
        offer(on, NULL, 0);
    if ((what->kind == COPY || what->kind == FILL) && what->started)
        offer(on, NULL, what->kind == COPY ? 2 : 1);
    for (int i = 0; i < what->part_count && what->started; i++) {
        const part *side = &what->parts[i];
        if (!side->done && meeting_ready(side->in) && !sender_is_local(side))
            offer(on, side->in, 3);
    }
}

/* Decide and do one thing. False: nothing can be done. */
bool step(void) {
    kernels_wait = draw(2) == 0;
    best.on = NULL;
    for (stream *s = machine.streams; s != NULL; s = s->next)
        if (s->head != NULL)
            offer_head(s);
    if (best.on == NULL)
        return false;
    operation *what = best.on->head;
    if (best.at != NULL)
        meeting_complete(best.at);
    else
        (what->kind == KERNEL ? run_kernel : complete_copy)(what);
    if (best.at == NULL && machine.failed == cudaSuccess)
        finish(best.on);
    changed();
    return true;
}

/* Is this impossible because a communicator has failed? */
bool blocked_by_failure(waiting what, int depth) {
    for (const stream *s = machine.streams; s != NULL; s = s->next) {
        const operation *head = s->head;
        if (head == NULL || depth > 64 ||
            (what.empty != NULL && what.empty != s) ||
            (what.point != NULL && what.point->stream != s->number))
            continue;
        if (head->kind == MESSAGES && communicator_failed(head->by))
            return true;
        if (head->kind == WAIT &&
            blocked_by_failure((waiting){.point = head->point}, depth + 1))
            return true;
    }
    return false;
}

/* The calls: streams. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *pStream,
                                         unsigned int flags, int priority) {
    TRY(enter());
    if (flags != cudaStreamNonBlocking)
        return leave(complain(cudaErrorInvalidValue,
                              "the emulator's streams do not wait for the null "
                              "stream"));
    /* The seed still decides the order. */
    *pStream = add_stream(++machine.numbers);
    (*pStream)->priority = priority;
    return leave(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *pStream,
                                      unsigned int flags) {
    return cudaStreamCreateWithPriority(pStream, flags, 0);
}

/* CUDA completes the work of a destroyed stream; few programs intend that, so
 * it is reported. After a failure it is allowed. */
cudaError_t cudaStreamDestroy(cudaStream_t given) {
    cudaError_t error = enter();
    stream *on;
    TRY(machine.begun ? find_stream(given, &on) : error);
    if (on->number == 0)
        return leave(cudaErrorInvalidResourceHandle);
    advance_streams();
    if (on->capture != NULL)
        error = spoil_capture(on, "cudaStreamDestroy");
    remove_stream(on);
    return leave(error);
}

static cudaError_t enter_to_wait(cudaStream_t given, const char *call,
                                 stream **out) {
    OR_RETURN(enter_stream(given, out));
    return (*out)->capture != NULL ? spoil_capture(*out, call) : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t given) {
    stream *on;
    TRY(enter_to_wait(given, "cudaStreamSynchronize", &on));
    return leave(await((waiting){.empty = on}));
}

cudaError_t cudaStreamQuery(cudaStream_t given) {
    stream *on;
    TRY(enter_to_wait(given, "cudaStreamQuery", &on));
    machine.counted.polls++;
    return leave(ask((waiting){.empty = on}));
}

/* The calls: copies. */

static cudaError_t check_direction(const void *to, const void *from,
                                   enum cudaMemcpyKind kind) {
    static const char *const names[] = {"host to host", "host to device",
                                        "device to host", "device to device"};
    if (kind == cudaMemcpyDefault)
        return cudaSuccess;
    const int is = (is_device(from) ? 2 : 0) + (is_device(to) ? 1 : 0);
    if (is != (int)kind)
        return complain(cudaErrorInvalidValue, "a copy called %s goes %s",
                        names[kind], names[is]);
    return cudaSuccess;
}

static cudaError_t check_copy(const operation *what, enum cudaMemcpyKind kind) {
    if (what->width > what->to_pitch || what->width > what->from_pitch)
        return complain(cudaErrorInvalidPitchValue,
                        "rows of %zu bytes with pitches %zu and %zu",
                        what->width, what->to_pitch, what->from_pitch);
    const size_t rows = what->height - 1;
    const size_t to_bytes = rows * what->to_pitch + what->width;
    const size_t from_bytes = rows * what->from_pitch + what->width;
    OR_RETURN(check_direction(what->to, what->from, kind));
    OR_RETURN(check_range(what->to, to_bytes, "copy into"));
    OR_RETURN(check_range(what->from, from_bytes, "copy from"));
    if (what->height > 1 || what->to + to_bytes <= what->from ||
        what->from + from_bytes <= what->to)
        return cudaSuccess;
    return complain(cudaErrorInvalidValue,
                    "copy of %zu bytes onto itself, %ld bytes on", to_bytes,
                    (what->to - what->from));
}

static void stage_source(operation *what) {
    what->staged = take(what->height, what->width);
    for (size_t row = 0; row < what->height; row++)
        memcpy(what->staged + row * what->width,
               what->from + row * what->from_pitch, what->width);
    what->from = what->staged;
    what->from_pitch = what->width;
}

/* With host memory that is not pinned, cudaMemcpyAsync reads the bytes before
 * it returns, or returns when they have arrived. In a graph it reads them when
 * it runs, unless a test freezes uploads. */
static cudaError_t enqueue_copy(stream *on, operation *what) {
    const bool from_host = !is_seen(what->from), to_host = !is_seen(what->to);
    const bool capturing = on->capture != NULL;
    if (capturing ? machine.freeze_uploads && !is_device(what->from)
                  : from_host)
        stage_source(what);
    OR_RETURN(issue(on, what));
    return to_host && !capturing ? await((waiting){.empty = on}) : cudaSuccess;
}

static cudaError_t copy(stream *on, operation shape, enum cudaMemcpyKind kind) {
    if (countdown(&machine.fail_copy))
        return complain(cudaErrorUnknown, "copy of %zu bytes failed on demand",
                        shape.width * shape.height);
    if (shape.width == 0 || shape.height == 0)
        return cudaSuccess;
    OR_RETURN(shape.kind == COPY ? check_copy(&shape, kind)
                                 : check_range(shape.to, shape.width, "fill"));
    if (shape.kind == FILL && !is_seen(shape.to))
        return complain(cudaErrorInvalidValue, "fill of host memory");
    operation *what = operation_copy(&shape);
    return shape.kind == COPY ? enqueue_copy(on, what) : issue(on, what);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src,
                              size_t spitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t given) {
    stream *on;
    TRY(enter_stream(given, &on));
    const operation shape = {.kind = COPY,
                             .to = dst,
                             .from = src,
                             .to_pitch = dpitch,
                             .from_pitch = spitch,
                             .width = width,
                             .height = height};
    return leave(copy(on, shape, kind));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count,
                            enum cudaMemcpyKind kind, cudaStream_t given) {
    return cudaMemcpy2DAsync(dst, count, src, count, count, 1, kind, given);
}

/* The host waits for copies to itself, and from pinned memory. From pageable
 * memory the bytes have been read when this returns. Between device addresses
 * nothing has happened yet: the copy is one more operation of the null stream,
 * for which the streams here do not wait. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t count,
                       enum cudaMemcpyKind kind) {
    OR_RETURN(cudaMemcpyAsync(dst, src, count, kind, NULL));
    TRY(enter());
    const bool pinned = is_seen(src) && !is_device(src);
    if (is_device(dst) && !pinned)
        return leave(cudaSuccess);
    return leave(await((waiting){.empty = resolve(NULL)}));
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count,
                            cudaStream_t given) {
    stream *on;
    TRY(enter_stream(given, &on));
    const operation shape = {.kind = FILL,
                             .to = devPtr,
                             .to_pitch = count,
                             .width = count,
                             .height = 1,
                             .value = value};
    return leave(copy(on, shape, cudaMemcpyDefault));
}

/* For device memory; the host does not wait. */
cudaError_t cudaMemset(void *devPtr, int value, size_t count) {
    return cudaMemsetAsync(devPtr, value, count, NULL);
}

/* The calls: events. */

static cudaError_t enter_event(cudaEvent_t given) {
    OR_RETURN(enter());
    return listed(&machine.events, given)
               ? cudaSuccess
               : complain(cudaErrorInvalidResourceHandle,
                          "an event that does not exist (any more)");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags) {
    TRY(enter());
    event *e = *out = take(1, sizeof *e);
    e->number = ++machine.numbers;
    e->flags = flags;
    machine.counted.timed_events += (flags & cudaEventDisableTiming) == 0;
    enlist(&machine.events, e);
    return leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t given) {
    const cudaError_t error = enter_event(given);
    if (listed(&machine.events, given))
        remove_event(given);
    return leave(error);
}

static operation *new_point(operation_kind kind, mark *point) {
    const operation shape = {.kind = kind, .point = point};
    point->references++;
    return operation_copy(&shape);
}

cudaError_t enqueue_point(stream *on, operation_kind kind, mark *point) {
    return enqueue(on, new_point(kind, point));
}

cudaError_t cudaEventRecord(cudaEvent_t given, cudaStream_t where) {
    stream *on;
    TRY(enter_event(given));
    TRY(find_stream(where, &on));
    if (on->capture != NULL)
        return leave(capture_record(on, given));
    given->captured = 0;
    mark_release(given->latest);
    given->latest = mark_new(on);
    return leave(issue(on, new_point(RECORD, given->latest)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t given, cudaEvent_t what,
                                unsigned int flags) {
    stream *on;
    (void)flags;
    TRY(enter_event(what));
    TRY(find_stream(given, &on));
    const bool ignored = countdown(&machine.ignore_wait);
    if (what->captured != 0 || on->capture != NULL)
        return leave(capture_wait(on, what, ignored));
    if (ignored || what->latest == NULL || what->latest->done)
        return leave(cudaSuccess);
    machine.counted.waits++;
    return leave(issue(on, new_point(WAIT, what->latest)));
}

/* An event of a capture has no time. */
static cudaError_t enter_timed_event(cudaEvent_t given) {
    OR_RETURN(enter_event(given));
    if (given->captured == 0)
        return cudaSuccess;
    return complain(cudaErrorCapturedEvent,
                    "event %ld belongs to a capture, where no time passes",
                    given->number);
}

cudaError_t cudaEventQuery(cudaEvent_t given) {
    TRY(enter_timed_event(given));
    machine.counted.polls++;
    if (given->latest == NULL)
        return leave(cudaSuccess);
    return leave(ask((waiting){.point = given->latest}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t given) {
    TRY(enter_timed_event(given));
    mark *point = given->latest;
    if (point == NULL)
        return leave(cudaSuccess);
    point->references++;
    const cudaError_t error = await((waiting){.point = point});
    mark_release(point);
    return leave(error);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start,
                                 cudaEvent_t end) {
    TRY(enter_event(start));
    const bool exists = listed(&machine.events, end);
    if (!exists || start->latest == NULL || end->latest == NULL ||
        ((start->flags | end->flags) & cudaEventDisableTiming) != 0)
        return leave(complain(cudaErrorInvalidResourceHandle,
                              "time between events that keep none"));
    if (!start->latest->done || !end->latest->done)
        return leave(cudaErrorNotReady);
    *ms = (float)(end->latest->time - start->latest->time);
    return leave(cudaSuccess);
}
