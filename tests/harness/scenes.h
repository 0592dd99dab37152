/* Scenes of the program, as files tell them: "== " and a name, lines of shell
 * after "$ ", the exit status if not 0, and texts that are on standard output
 * (out), on standard error (err), or not on standard output (not). */
#ifndef HARNESS_SCENES_H
#define HARNESS_SCENES_H

/* Read the scenes of all files of that pattern; how many there are. */
int scenes_read(const char *pattern);

/* The test fails unless that scene is as told, and leaves nothing half
 * written. */
void scene_play(int which);

#endif
