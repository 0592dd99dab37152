/* Lines typed at a terminal, edited by libedit where that is installed: arrows,
 * a history, lines of any length. Not needed to build. */
#ifndef CP_EDIT_H
#define CP_EDIT_H

#include <stdbool.h>
#include <sys/types.h>

/* Load the library. False if there is none or TERM is dumb: the terminal then
 * edits lines itself. */
bool cp_edit_open(void);

/* Read the next line, without its end, into *text, freeing what that held.
 * Returns its bytes; -1 at the end of the input. The caller frees *text. Only
 * after cp_edit_open. */
ssize_t cp_edit_read(const char *prompt, char **text);

/* Restore the terminal as it was when the library was opened. May be called
 * from a signal handler, and without the library. */
void cp_edit_restore(void);

#endif
