/* What Python runs for us. */
#ifndef CP_PEER_PROGRAMS_H
#define CP_PEER_PROGRAMS_H

#include <stddef.h>

/* The program of the peer of that name, in size bytes; they are enough. */
void cp_peer_program(const char *name, char *program, size_t size);

#endif
