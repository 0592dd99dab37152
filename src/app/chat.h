/* Conversations with a model, all at the same turn: a question to each, and
 * its answer. Not the command that asks. */
#ifndef CP_CHAT_H
#define CP_CHAT_H

#include <signal.h>

#include "app/command.h"
#include "app/tape.h"
#include "model/template.h"

/* One conversation, and the answer that it gives or gave last. */
typedef struct {
    int32_t next; /* the token to be fed; CP_SILENT: its turn is over */
    int64_t left; /* tokens that the answer may still have */
    int32_t *answer;
    int64_t answered; /* tokens that it has */
} cp_speaker;

enum { CP_SILENT = -1 };

/* Why an answer was cut short. */
enum { CP_CUT_BY_MOST, CP_CUT_BY_ROOM, CP_CUT_BY_USER, CP_CUTS };

/* What a turn took. */
typedef struct {
    cp_turn_report prefill; /* without its arrays */
    char *ranks;            /* a page: what each rank did in it; owned */
    char *drawing;          /* its plan, as a page, if chat->forgives; owned */
    double first_seconds;   /* until the first token */
    double decode_seconds;  /* of all decode steps */
    int64_t steps;          /* of decode */
    int64_t decode_bytes;   /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t tokens;        /* in the answers */
    int64_t cuts[CP_CUTS]; /* answers that were cut short, by why */
} cp_cost;

typedef struct {
    /* The caller fills these in. */
    int64_t sequences;
    int64_t most;       /* tokens of an answer */
    const char *system; /* NULL: the model's own */
    cp_sampler sampler;
    bool live;     /* the answer is shown while it comes */
    bool forgives; /* an interrupt ends the answer, and no more */
    volatile sig_atomic_t *stop;
    cp_screen screen;
    cp_progress progress;
    cp_opened opened; /* by the caller: its path */
    cp_template template;
    cp_session *session;
    char *document; /* before the first questions; owned. NULL: none */
    int64_t document_bytes;
    /* What a turn leaves behind. */
    cp_speaker *speakers; /* [sequences] */
    int32_t *answers;     /* of all speakers; owned */
    cp_cost cost;
    cp_tape tape;
    bool stopping; /* the user has had enough of this answer */
} cp_chat;

/* Ask questions[s] of each sequence s, and let it answer; cost says what it
 * took. Fails with CP_CAPACITY where there is no room for an answer. After a
 * failure before the answer, and after CP_INTERRUPTED, the conversations are
 * as they were. */
cp_status cp_chat_ask(cp_chat *chat, const char *const *questions);

/* Room for the answers. Fails with CP_MEMORY. */
cp_status cp_chat_open(cp_chat *chat);

/* Show the answer of a sequence. */
void cp_chat_show(cp_chat *chat, int64_t sequence);

/* Print what the turn took: all of it, or in a line. */
void cp_chat_cost_page(const cp_chat *chat);
void cp_chat_cost_line(const cp_chat *chat, bool terminal);

/* Free all that is opened, the session and the document too. */
void cp_chat_close(cp_chat *chat);

#endif
