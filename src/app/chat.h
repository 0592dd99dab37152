/* Conversations with a model, all at the same turn: a question to each, and its
 * answer. Not the command itself. */
#ifndef CP_CHAT_H
#define CP_CHAT_H

#include <signal.h>

#include "app/command.h"
#include "app/transcript.h"
#include "model/template.h"

/* A pause: the empty lines between a thought and what is said. */
typedef enum { CP_SPEAKS, CP_THINKS, CP_PAUSES } cp_mood;

/* One conversation, and its current or last answer. */
typedef struct {
    cp_ids tokens; /* all its tokens: those in the session, then those still to
                      be fed; if none of the latter, its turn is over */
    int64_t turn_start;   /* tokens of earlier turns */
    int64_t answer_start; /* tokens before this turn's answer */
    int64_t cached; /* tokens that were in the session before its last call */
    int64_t
        shared_prefix; /* length of the prefix to be taken over from sequence 0
                       when that has read it; 0: none */
    int64_t left;      /* tokens that the answer may still get */
    cp_mood mood;      /* of what comes next */
    bool ended;        /* tokens includes its end: nothing more is drawn */
    double last_token_time; /* when its last token came */
    cp_sampler sampler;
    cp_ids answer;
} cp_conversation;

/* Why an answer was cut short. */
enum { CP_CUT_BY_MOST, CP_CUT_BY_ROOM, CP_CUT_BY_USER, CP_CUTS };

/* What a turn cost. */
typedef struct {
    cp_turn_report prefill; /* all reading calls; its arrays are in figures */
    int64_t *figures;       /* [4][ranks] queries, keys, bytes, pairs; owned */
    int64_t pieces;         /* reading calls */
    int64_t shared; /* tokens taken over from sequence 0 instead of read */
    char *drawing;  /* the last plan, a page, if chat->interruptible; owned */
    double first_seconds;  /* until the first token of any answer */
    double last_seconds;   /* until the first token of every answer */
    double stall;          /* the longest between two tokens of an answer */
    double decode_seconds; /* of all decode steps */
    int64_t steps;         /* decode steps */
    int64_t decode_bytes;  /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t tokens;          /* in the answers */
    int64_t drafted, stayed; /* tokens guessed, and how many were right */
    int64_t cuts[CP_CUTS];   /* answers that were cut short, by why */
    int64_t waited; /* conversations that waited until rows were free */
} cp_cost;

typedef struct {
    /* The caller fills these in. */
    int64_t sequences;
    int64_t most;       /* tokens of an answer */
    int64_t draft;      /* tokens guessed for each step; or 0 */
    int64_t budget;     /* tokens of a reading call; 0: any number */
    cp_sampler sampler; /* the first sequence's; the others derive their own */
    bool live;          /* the answer is shown as it arrives */
    bool hides;         /* thoughts, <think> to </think>, are not shown */
    bool interruptible; /* an interrupt ends the answer, not the program */
    volatile sig_atomic_t *stop;
    cp_screen screen;
    cp_progress progress;
    cp_opened opened;     /* the caller sets its path */
    cp_template template; /* the caller sets it */
    cp_session *session;
    char *document; /* goes before the next questions; owned. NULL: none */
    int64_t document_bytes;
    bool unread; /* it is not yet in the conversation */
    /* What a turn leaves behind. */
    cp_conversation *conversations; /* [sequences] */
    cp_cost cost;
    cp_transcript transcript;
    int64_t open;  /* the first `open` conversations do not wait for rows */
    double start;  /* when the turn began */
    bool stopping; /* the user has stopped this answer */
} cp_chat;

/* Ask each sequence s questions[s], and let it answer; cost says what that
 * took. If too few rows are free for all sequences, some wait until others have
 * answered; those are then cleared. Fails with CP_CAPACITY where there is no
 * room for an answer. After a failure the conversations are as they were. */
cp_status cp_chat_ask(cp_chat *chat, const char *const *questions);

/* Lay the figures out for this many ranks. */
void cp_cost_point(cp_cost *cost, int ranks);

/* Mark this state: cp_chat_recover goes back to it after a failure. */
void cp_chat_mark(cp_chat *chat);

/* After a failure: if a rank is lost and the others can go on, take back what
 * was said since the mark, and read again what that rank held. Returns true if
 * all is then as at the mark, so that the failed call may be made again;
 * otherwise *status says why it cannot. */
bool cp_chat_recover(cp_chat *chat, cp_status *status);

/* Make room for the answers. Fails with CP_MEMORY. */
cp_status cp_chat_open(cp_chat *chat);

/* Clear the conversations; the document goes before the next questions again.
 * Fails as cp_session_truncate does. */
cp_status cp_chat_clear(cp_chat *chat);

/* Save the conversations to a file; or load a file into the session, which must
 * be empty, and the conversations. *tokens becomes the number of tokens loaded.
 * These fail as cp_saved_conversation_write and cp_saved_conversation_read do;
 * nothing has changed then, and the session is still empty. */
cp_status cp_chat_save(cp_chat *chat, const char *path, int64_t *bytes);
cp_status cp_chat_load(cp_chat *chat, const char *path, int64_t *tokens);

/* Show the answer of a sequence. */
void cp_chat_show(cp_chat *chat, int64_t sequence);

/* Print what the turn cost, as a page or in a line. */
void cp_chat_cost_page(const cp_chat *chat);
void cp_chat_cost_line(cp_chat *chat, bool terminal);

/* Free all that was opened, including the session and the document. */
void cp_chat_close(cp_chat *chat);

#endif
