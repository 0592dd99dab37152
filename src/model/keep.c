/* A saved conversation. */
#define _POSIX_C_SOURCE 200809L
#include "model/keep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ground/random.h"
#include "ground/save.h"
#include "ring/crew.h"

static const char magic[8] = "LONGRING";
enum { VERSION = 2, STRETCH = 1024 }; /* tokens of a block of rows */

static_assert(sizeof(cp_keep_head) == 144, "a head has no gaps");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "as files are");

/* Bytes of lengths, chances and ids, and of the checksum after them. */
static int64_t words_bytes(const cp_keep_head *head) {
    return 16 * head->sequences + cp_ceil_divide(4 * head->tokens, 8) * 8 + 8;
}

int64_t cp_keep_bytes(const cp_keep_head *head) {
    const int64_t width = head->key_width + head->value_width;
    const int64_t sums = 8 * cp_ceil_divide(head->tokens, STRETCH);
    int64_t bytes;
    return cp_multiply(head->tokens * 4, width, &bytes) &&
                   cp_multiply(bytes + sums, head->layers, &bytes) &&
                   cp_add(bytes, words_bytes(head) + (int64_t)sizeof(*head),
                          &bytes)
               ? bytes
               : -1;
}

static void words_point(cp_keep *keep) {
    keep->lengths = (int64_t *)(void *)keep->words;
    keep->chances = (uint64_t *)(keep->lengths + keep->head.sequences);
    keep->ids = (int32_t *)(keep->chances + keep->head.sequences);
}

static cp_status words_new(cp_keep *keep) {
    CP_TRY(cp_allocate(&keep->words, words_bytes(&keep->head), 1,
                       "what was said"));
    words_point(keep);
    return CP_OK;
}

cp_status cp_keep_new(const cp_model *model, const cp_gguf *file,
                      const char *name, int64_t sequences, int64_t tokens,
                      cp_keep *keep) {
    const cp_model_facts *facts = &model->facts;
    const int64_t values = cp_value_width(&facts->shape);
    *keep =
        (cp_keep){.head = {.version = VERSION,
                           .model = cp_gguf_fingerprint(file),
                           .layers = facts->layers,
                           .key_width = cp_kept_width(&facts->shape) - values,
                           .value_width = values,
                           .vocabulary = facts->vocabulary,
                           .sequences = sequences,
                           .tokens = tokens}};
    cp_keep_head *head = &keep->head;
    memcpy(head->magic, magic, sizeof(magic));
    snprintf(head->name, sizeof(head->name), "%s", name);
    head->sum = cp_hash(0, head, offsetof(cp_keep_head, sum));
    return words_new(keep);
}

void cp_keep_free(cp_keep *keep) {
    free(keep->words);
    *keep = (cp_keep){0};
}

/* A transfer of rows between a session and a file, which only the reporting
 * process has: either one that is read, with its path, or one that is
 * written. */
typedef struct {
    const cp_keep *keep;
    cp_session *session;
    bool reads;
    FILE *from;
    const char *path;
    cp_sink *to;
    void *data; /* of a block, and the checksum after it */
} passage;

/* Read the next bytes of a file. */
static cp_status take(FILE *file, const char *path, void *data, int64_t bytes) {
    if (fread(data, 1, (size_t)bytes, file) == (size_t)bytes)
        return CP_OK;
    if (ferror(file))
        return cp_fail(CP_FILE, "%s: cannot read: %s", path, strerror(errno));
    return cp_refuse("%s: the conversation is truncated", path);
}

static cp_status block_take(const passage *it, const cp_row_copy *rows,
                            int64_t bytes) {
    CP_TRY(take(it->from, it->path, it->data, bytes + 8));
    const uint64_t due = cp_hash(0, it->data, bytes);
    if (memcmp((char *)it->data + bytes, &due, 8) == 0)
        return CP_OK;
    return cp_refuse("%s: layer %ld, tokens %ld to %ld are damaged", it->path,
                     rows->layer, rows->row, rows->row + rows->count - 1);
}

static cp_status block_carry(passage *it, int64_t layer, int64_t first) {
    const cp_keep_head *head = &it->keep->head;
    cp_row_copy rows = {.writes = it->reads,
                        .layer = layer,
                        .row = first,
                        .count = cp_min(STRETCH, head->tokens - first)};
    int64_t bytes = 4 * rows.count * (head->key_width + head->value_width);
    if (it->reads) {
        const cp_status status =
            it->from != NULL ? block_take(it, &rows, bytes) : CP_OK;
        CP_TRY(cp_crew_share(status, NULL, 0, &it->data, &bytes));
    }
    rows.keys = it->data;
    rows.values = rows.keys + rows.count * head->key_width;
    CP_TRY(cp_session_rows(it->session, &rows));
    const uint64_t sum = cp_hash(0, it->data, bytes);
    if (it->to != NULL) {
        cp_sink_write(it->to, it->data, bytes);
        cp_sink_write(it->to, &sum, 8);
    }
    return CP_OK;
}

static cp_status rows_carry(passage *it) {
    const cp_keep_head *head = &it->keep->head;
    cp_status status =
        cp_allocate(&it->data, STRETCH * 4,
                    head->key_width + head->value_width + 2, "rows");
    for (int64_t layer = 0; layer < head->layers; layer++)
        for (int64_t n = 0; n < head->tokens && status == CP_OK; n += STRETCH)
            status = block_carry(it, layer, n);
    free(it->data);
    return status;
}

static cp_status fill(void *context, cp_sink *sink) {
    const cp_keep *keep = ((passage *)context)->keep;
    ((passage *)context)->to = sink;
    if (sink != NULL) {
        cp_sink_write(sink, &keep->head, sizeof(keep->head));
        cp_sink_write(sink, keep->words, words_bytes(&keep->head));
    }
    return rows_carry(context);
}

cp_status cp_keep_write(const char *path, cp_keep *keep, cp_session *session) {
    passage it = {.keep = keep, .session = session};
    const int64_t bytes = words_bytes(&keep->head) - 8;
    const uint64_t sum = cp_hash(0, keep->words, bytes);
    memcpy(keep->words + bytes, &sum, 8);
    const cp_status status =
        cp_crew_leads() ? cp_save_stream(path, fill, &it) : fill(&it, NULL);
    return cp_crew_share(status, NULL, 0, NULL, NULL);
}

static cp_status head_check(const char *path, const cp_keep_head *head,
                            const cp_keep_head *due) {
    if (memcmp(head->magic, magic, sizeof(magic)) != 0)
        return cp_refuse("%s: not a conversation saved by longring", path);
    if (head->version != VERSION)
        return cp_refuse("%s: version %ld; expected %d", path, head->version,
                         VERSION);
    if (head->sum != cp_hash(0, head, offsetof(cp_keep_head, sum)))
        return cp_refuse("%s: the header is damaged", path);
    if (head->model != due->model ||
        memcmp(&head->layers, &due->layers,
               offsetof(cp_keep_head, sequences) -
                   offsetof(cp_keep_head, layers)) != 0) {
        const cp_gguf_string name = {head->name,
                                     (int64_t)strnlen(head->name, 64)};
        return cp_refuse("%s: a conversation with %s; expected %s", path,
                         cp_gguf_show(name).text, due->name);
    }
    if (head->sequences != due->sequences)
        return cp_refuse("%s: %ld conversations; expected %ld", path,
                         head->sequences, due->sequences);
    return CP_OK;
}

/* Check the file's size against the header before allocating anything. */
static cp_status size_check(FILE *file, const char *path,
                            const cp_keep_head *head, int64_t most) {
    if (head->tokens < 0 || head->tokens > head->sequences * most)
        return cp_fail(
            CP_CAPACITY,
            "%s: %ld tokens exceed %ld positions for each of %ld conversations",
            path, head->tokens, most, head->sequences);
    const int64_t due = cp_keep_bytes(head);
    if (due < 0)
        return cp_refuse("%s: the size of %ld tokens overflows", path,
                         head->tokens);
    if (fseeko(file, 0, SEEK_END) != 0 || ftello(file) < 0)
        return cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    if (ftello(file) != due)
        return cp_refuse("%s: %ld bytes; expected %ld", path,
                         (int64_t)ftello(file), due);
    fseeko(file, sizeof(*head), SEEK_SET);
    return CP_OK;
}

static cp_status words_check(const char *path, const cp_keep *keep,
                             int64_t most) {
    const cp_keep_head *head = &keep->head;
    const int64_t bytes = words_bytes(head) - 8;
    const uint64_t due = cp_hash(0, keep->words, bytes);
    int64_t tokens = 0;
    if (memcmp(keep->words + bytes, &due, 8) != 0)
        return cp_refuse("%s: the tokens are damaged", path);
    for (int64_t s = 0; s < head->sequences; s++) {
        const int64_t length = keep->lengths[s];
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
        if (keep->ids[t] < 0 || keep->ids[t] >= head->vocabulary)
            return cp_refuse("%s: token %ld has id %d; the vocabulary has %ld",
                             path, t, keep->ids[t], head->vocabulary);
    return CP_OK;
}

static cp_status begin_read(FILE *file, const char *path,
                            const cp_keep_head *due, int64_t most,
                            cp_keep *keep) {
    CP_TRY(take(file, path, &keep->head, sizeof(keep->head)));
    CP_TRY(head_check(path, &keep->head, due));
    CP_TRY(size_check(file, path, &keep->head, most));
    CP_TRY(words_new(keep));
    CP_TRY(take(file, path, keep->words, words_bytes(&keep->head)));
    return words_check(path, keep, most);
}

cp_status cp_keep_read(FILE *file, const char *path, const cp_keep *wanted,
                       cp_session *session, cp_keep *keep) {
    passage it = {.keep = keep,
                  .session = session,
                  .reads = true,
                  .from = file,
                  .path = path};
    cp_status status = CP_OK;
    *keep = (cp_keep){0};
    if (file != NULL)
        status = begin_read(file, path, &wanted->head,
                            cp_session_capacity(session), keep);
    /* All processes get what the reporting process has read. */
    int64_t bytes = status == CP_OK ? words_bytes(&keep->head) : 0;
    void *words = keep->words;
    status =
        cp_crew_share(status, &keep->head, sizeof(keep->head), &words, &bytes);
    keep->words = words;
    CP_TRY(status);
    words_point(keep);
    CP_TRY(cp_session_settle(session, keep->lengths));
    status = rows_carry(&it);
    for (int64_t s = 0; s < keep->head.sequences && status != CP_OK; s++)
        cp_session_truncate(session, s, 0);
    return status;
}

cp_status cp_keep_load(const char *path, const cp_keep *wanted,
                       cp_session *session, cp_keep *keep) {
    FILE *file = NULL;
    struct stat entry;
    cp_status status = CP_OK;
    *keep = (cp_keep){0};
    if (cp_crew_leads()) {
        if (stat(path, &entry) != 0)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
        else if (!S_ISREG(entry.st_mode))
            status = cp_fail(CP_FILE, "%s: not a regular file", path);
        else if ((file = fopen(path, "rb")) == NULL)
            status = cp_fail(CP_FILE, "%s: %s", path, strerror(errno));
    }
    CP_TRY(cp_crew_share(status, NULL, 0, NULL, NULL));
    status = cp_keep_read(file, path, wanted, session, keep);
    if (file != NULL)
        fclose(file);
    return status;
}
