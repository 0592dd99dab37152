/* Scenes of the program, from files: "== " and a name, shell lines after "$ ",
 * the exit status if not 0, and texts that must be on standard output (out), on
 * standard error (err), or not on standard output (not). */
#ifndef HARNESS_SCENES_H
#define HARNESS_SCENES_H

/* Read the scenes of all files that match the pattern; returns how many. */
int scenes_read(const char *pattern);

/* The test fails unless that scene goes as expected and leaves no partial
 * files. */
void scene_play(int which);

#endif
