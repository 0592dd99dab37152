/* A saved conversation. */
#define _POSIX_C_SOURCE 200809L
#include "model/saved_conversation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ground/random.h"
#include "ground/save.h"
#include "group/process_group.h"

static const char magic[8] = "LONGRING";
enum { VERSION = 2, STRETCH = 1024 }; /* tokens of a block of rows */

static_assert(sizeof(cp_saved_conversation_head) == 144, "a head has no gaps");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as files are");

/* Bytes of lengths, chances and ids, and of the checksum after them. */
static int64_t words_bytes(const cp_saved_conversation_head *head) {
    return 16 * head->sequences + cp_ceil_divide(4 * head->tokens, 8) * 8 + 8;
}

int64_t cp_saved_conversation_bytes(const cp_saved_conversation *saved) {
    const cp_saved_conversation_head *head = &saved->head;
    const int64_t width = head->key_width + head->value_width;
    const int64_t sums = 8 * cp_ceil_divide(head->tokens, STRETCH);
    int64_t bytes, states = 0;
    return cp_multiply(head->tokens * 4, width, &bytes) &&
                   cp_multiply(bytes + sums, head->layers, &bytes) &&
                   (saved->state_numbers == 0 ||
                    cp_multiply(4 * saved->state_numbers + 8, head->sequences,
                                &states)) &&
                   cp_add(bytes, states, &bytes) &&
                   cp_add(bytes, words_bytes(head) + (int64_t)sizeof(*head),
                          &bytes)
               ? bytes
               : -1;
}

static void words_point(cp_saved_conversation *saved) {
    saved->lengths = (int64_t *)(void *)saved->words;
    saved->chances = (uint64_t *)(saved->lengths + saved->head.sequences);
    saved->ids = (int32_t *)(saved->chances + saved->head.sequences);
}

static cp_status words_new(cp_saved_conversation *saved) {
    CP_TRY(cp_allocate(&saved->words, words_bytes(&saved->head), 1,
                       "what was said"));
    words_point(saved);
    return CP_OK;
}

cp_status cp_saved_conversation_new(const cp_model *model, const cp_gguf *file,
                                    const char *name, int64_t sequences,
                                    int64_t tokens,
                                    cp_saved_conversation *saved) {
    const cp_model_facts *facts = &model->facts;
    const int64_t values = cp_value_width(&facts->shape);
    *saved = (cp_saved_conversation){
        .head = {.version = VERSION,
                 .model = cp_gguf_fingerprint(file),
                 .layers = cp_facts_attending(facts, facts->layers),
                 .key_width = cp_kept_width(&facts->shape) - values,
                 .value_width = values,
                 .vocabulary = facts->vocabulary,
                 .sequences = sequences,
                 .tokens = tokens},
        .state_numbers =
            cp_facts_is_hybrid(facts)
                ? cp_state_numbers(&facts->states) *
                      (facts->layers - cp_facts_attending(facts, facts->layers))
                : 0};
    cp_saved_conversation_head *head = &saved->head;
    memcpy(head->magic, magic, sizeof(magic));
    snprintf(head->name, sizeof(head->name), "%s", name);
    head->sum = cp_hash(0, head, offsetof(cp_saved_conversation_head, sum));
    return words_new(saved);
}

void cp_saved_conversation_free(cp_saved_conversation *saved) {
    free(saved->words);
    *saved = (cp_saved_conversation){0};
}

/* A transfer of rows between a session and a file, which only the reporting
 * process has: either one that is read, with its path, or one that is
 * written. */
typedef struct {
    const cp_saved_conversation *saved;
    cp_session *session;
    bool reads;
    FILE *from;
    const char *path;
    cp_sink *to;
    void *data; /* of a block, and the checksum after it */
} copy_job;

/* Read the next bytes of a file. */
static cp_status take(FILE *file, const char *path, void *data, int64_t bytes) {
    if (fread(data, 1, (size_t)bytes, file) == (size_t)bytes)
        return CP_OK;
    if (ferror(file))
        return cp_fail(CP_FILE, "%s: cannot read: %s", path, strerror(errno));
    return cp_refuse("%s: the conversation is truncated", path);
}

/* Read a block and compare its checksum; what: for the message. */
static cp_status block_take(const copy_job *job, int64_t bytes,
                            const char *what) {
    CP_TRY(take(job->from, job->path, job->data, bytes + 8));
    const uint64_t expected = cp_hash(0, job->data, bytes);
    if (memcmp((char *)job->data + bytes, &expected, 8) == 0)
        return CP_OK;
    return cp_refuse("%s: %s are damaged", job->path, what);
}

/* The same on all processes, of which one has the file. */
static cp_status broadcast_block(copy_job *job, int64_t bytes,
                                 const char *what) {
    const cp_status status =
        job->from != NULL ? block_take(job, bytes, what) : CP_OK;
    return cp_process_group_broadcast(status, NULL, 0, &job->data, &bytes);
}

static void block_write(const copy_job *job, int64_t bytes) {
    const uint64_t sum = cp_hash(0, job->data, bytes);
    if (job->to == NULL)
        return;
    cp_sink_write(job->to, job->data, bytes);
    cp_sink_write(job->to, &sum, 8);
}

static cp_status block_copy(copy_job *job, int64_t layer, int64_t first) {
    const cp_saved_conversation_head *head = &job->saved->head;
    cp_row_copy rows = {.writes = job->reads,
                        .layer = layer,
                        .row = first,
                        .count = cp_min(STRETCH, head->tokens - first)};
    const int64_t bytes =
        4 * rows.count * (head->key_width + head->value_width);
    char what[80];
    snprintf(what, sizeof(what), "layer %ld, tokens %ld to %ld", layer, first,
             first + rows.count - 1);
    if (job->reads)
        CP_TRY(broadcast_block(job, bytes, what));
    rows.keys = job->data;
    rows.values = rows.keys + rows.count * head->key_width;
    CP_TRY(cp_session_rows(job->session, &rows));
    block_write(job, bytes);
    return CP_OK;
}

static cp_status states_copy(copy_job *job) {
    const cp_saved_conversation *saved = job->saved;
    const int64_t bytes = 4 * saved->state_numbers;
    cp_status status = cp_allocate(&job->data, bytes + 8, 1, "states");
    for (int64_t s = 0; s < saved->head.sequences && status == CP_OK; s++) {
        char what[80];
        snprintf(what, sizeof(what), "the states of conversation %ld", s);
        if (job->reads)
            status = broadcast_block(job, bytes, what);
        if (status == CP_OK && saved->lengths[s] > 0)
            status = cp_session_states(job->session, s, job->reads, job->data);
        else
            memset(job->data, 0, (size_t)bytes);
        block_write(job, bytes);
    }
    free(job->data);
    return status;
}

static cp_status rows_copy(copy_job *job) {
    const cp_saved_conversation_head *head = &job->saved->head;
    cp_status status =
        cp_allocate(&job->data, STRETCH * 4,
                    head->key_width + head->value_width + 2, "rows");
    for (int64_t layer = 0; layer < head->layers; layer++)
        for (int64_t n = 0; n < head->tokens && status == CP_OK; n += STRETCH)
            status = block_copy(job, layer, n);
    free(job->data);
    return status != CP_OK || job->saved->state_numbers == 0 ? status
                                                             : states_copy(job);
}

static cp_status fill(void *context, cp_sink *sink) {
    const cp_saved_conversation *saved = ((copy_job *)context)->saved;
    ((copy_job *)context)->to = sink;
    if (sink != NULL) {
        cp_sink_write(sink, &saved->head, sizeof(saved->head));
        cp_sink_write(sink, saved->words, words_bytes(&saved->head));
    }
    return rows_copy(context);
}

cp_status cp_saved_conversation_write(const char *path,
                                      cp_saved_conversation *saved,
                                      cp_session *session) {
    copy_job job = {.saved = saved, .session = session};
    const int64_t bytes = words_bytes(&saved->head) - 8;
    const uint64_t sum = cp_hash(0, saved->words, bytes);
    memcpy(saved->words + bytes, &sum, 8);
    const cp_status status = cp_process_group_leads()
                                 ? cp_save_stream(path, fill, &job)
                                 : fill(&job, NULL);
    return cp_process_group_broadcast(status, NULL, 0, NULL, NULL);
}

static cp_status head_check(const char *path,
                            const cp_saved_conversation_head *head,
                            const cp_saved_conversation_head *expected) {
    if (memcmp(head->magic, magic, sizeof(magic)) != 0)
        return cp_refuse("%s: not a conversation saved by longring", path);
    if (head->version != VERSION)
        return cp_refuse("%s: version %ld; expected %d", path, head->version,
                         VERSION);
    if (head->sum !=
        cp_hash(0, head, offsetof(cp_saved_conversation_head, sum)))
        return cp_refuse("%s: the header is damaged", path);
    if (head->model != expected->model ||
        memcmp(&head->layers, &expected->layers,
               offsetof(cp_saved_conversation_head, sequences) -
                   offsetof(cp_saved_conversation_head, layers)) != 0) {
        const cp_gguf_string name = {head->name,
                                     (int64_t)strnlen(head->name, 64)};
        return cp_refuse("%s: a conversation with %s; expected %s", path,
                         cp_gguf_show(name).text, expected->name);
    }
    if (head->sequences != expected->sequences)
        return cp_refuse("%s: %ld conversations; expected %ld", path,
                         head->sequences, expected->sequences);
    return CP_OK;
}

/* Check the file's size against the header before allocating anything. */
static cp_status size_check(FILE *file, const char *path,
                            const cp_saved_conversation *saved, int64_t most) {
    const cp_saved_conversation_head *head = &saved->head;
    if (head->tokens < 0 || head->tokens > head->sequences * most)
        return cp_fail(
            CP_CAPACITY,
            "%s: %ld tokens exceed %ld positions for each of %ld conversations",
            path, head->tokens, most, head->sequences);
    const int64_t expected = cp_saved_conversation_bytes(saved);
    if (expected < 0)
        return cp_refuse("%s: the size of %ld tokens overflows", path,
                         head->tokens);
    if (fseeko(file, 0, SEEK_END) != 0 || ftello(file) < 0)
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    if (ftello(file) != expected)
        return cp_refuse("%s: %ld bytes; expected %ld", path,
                         (int64_t)ftello(file), expected);
    fseeko(file, sizeof(*head), SEEK_SET);
    return CP_OK;
}

static cp_status words_check(const char *path,
                             const cp_saved_conversation *saved, int64_t most) {
    const cp_saved_conversation_head *head = &saved->head;
    const int64_t bytes = words_bytes(head) - 8;
    const uint64_t expected = cp_hash(0, saved->words, bytes);
    int64_t tokens = 0;
    if (memcmp(saved->words + bytes, &expected, 8) != 0)
        return cp_refuse("%s: the tokens are damaged", path);
    for (int64_t s = 0; s < head->sequences; s++) {
        const int64_t length = saved->lengths[s];
        if (length < 0 || length > most)
            return cp_fail(CP_CAPACITY,
                           "%s: conversation %ld has %ld tokens; expected at "
                           "most %ld, the positions",
                           path, s, length, most);
        tokens += length;
    }
    if (tokens != head->tokens)
        return cp_refuse("%s: %ld tokens; expected %ld", path, tokens,
                         head->tokens);
    for (int64_t t = 0; t < tokens; t++)
        if (saved->ids[t] < 0 || saved->ids[t] >= head->vocabulary)
            return cp_refuse("%s: token %ld has id %d; the vocabulary has %ld",
                             path, t, saved->ids[t], head->vocabulary);
    return CP_OK;
}

static cp_status begin_read(FILE *file, const char *path,
                            const cp_saved_conversation_head *expected,
                            int64_t most, cp_saved_conversation *saved) {
    CP_TRY(take(file, path, &saved->head, sizeof(saved->head)));
    CP_TRY(head_check(path, &saved->head, expected));
    CP_TRY(size_check(file, path, saved, most));
    CP_TRY(words_new(saved));
    CP_TRY(take(file, path, saved->words, words_bytes(&saved->head)));
    return words_check(path, saved, most);
}

cp_status cp_saved_conversation_read(FILE *file, const char *path,
                                     const cp_saved_conversation *expected,
                                     cp_session *session,
                                     cp_saved_conversation *saved) {
    copy_job job = {.saved = saved,
                    .session = session,
                    .reads = true,
                    .from = file,
                    .path = path};
    cp_status status = CP_OK;
    *saved = (cp_saved_conversation){.state_numbers = expected->state_numbers};
    if (file != NULL)
        status = begin_read(file, path, &expected->head,
                            cp_session_capacity(session), saved);
    /* All processes get what the reporting process has read. */
    int64_t bytes = status == CP_OK ? words_bytes(&saved->head) : 0;
    void *words = saved->words;
    status = cp_process_group_broadcast(status, &saved->head,
                                        sizeof(saved->head), &words, &bytes);
    saved->words = words;
    CP_TRY(status);
    words_point(saved);
    CP_TRY(cp_session_assign(session, saved->lengths));
    status = rows_copy(&job);
    for (int64_t s = 0; s < saved->head.sequences && status != CP_OK; s++)
        cp_session_truncate(session, s, 0);
    return status;
}

cp_status cp_saved_conversation_load(const char *path,
                                     const cp_saved_conversation *expected,
                                     cp_session *session,
                                     cp_saved_conversation *saved) {
    FILE *file = NULL;
    struct stat entry;
    cp_status status = CP_OK;
    *saved = (cp_saved_conversation){0};
    if (cp_process_group_leads()) {
        if (stat(path, &entry) != 0)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
        else if (!S_ISREG(entry.st_mode))
            status = cp_fail(CP_FILE, "%s: not a regular file", path);
        else if ((file = fopen(path, "rb")) == NULL)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    }
    CP_TRY(cp_process_group_broadcast(status, NULL, 0, NULL, NULL));
    status = cp_saved_conversation_read(file, path, expected, session, saved);
    if (file != NULL)
        fclose(file);
    return status;
}
