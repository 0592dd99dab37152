/* Cases, points and failures. Check runs each case in its own process. */
#define _GNU_SOURCE
#include "grade.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ground/random.h"
#include "predict/draw.h"

enum {
    ROOMS = 4096,
    STROKES = 20000,
    AROUND = 0xA5,  /* fills the bytes of the pages outside a room */
    LAST_LINES = 5, /* last lines of what an answer printed */
    WIDE = 62,      /* columns of a line of text */
};

/* What outlives the process of a case, whatever ended it. */
static struct {
    bool over; /* the case ran to its end */
    char ran[400], section[40];
} * board;

static struct {
    unsigned char *base; /* of its accessible pages */
    size_t pages, bytes;
} rooms[ROOMS];
static int room_count;

static int now; /* the case, from 1 */
static uint64_t seed, state;
static cp_stroke *strokes;
static int64_t stroke_count;
static cp_status (*draw_by)(const void *what, int kind, void *file);
static const void *drawn;

static const char *environment(const char *name) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

/* Drawing. */

void grade_stroke(int rank, bool talks, int origin, const char *name,
                  double start, double end) {
    if (strokes == NULL &&
        cp_allocate(&strokes, STROKES, sizeof(*strokes), "strokes") != CP_OK)
        return;
    if (stroke_count < STROKES)
        strokes[stroke_count++] =
            (cp_stroke){rank, talks, origin, name, start, end, 0};
}

void grade_strokes_clear(void) {
    stroke_count = 0;
    draw_by = NULL;
}

void grade_draw_by(cp_status (*draw)(const void *what, int kind, void *file),
                   const void *what) {
    draw_by = draw;
    drawn = what;
}

static cp_status draw_strokes(const void *what, int kind, void *file) {
    int ranks = 1;
    (void)what;
    for (int64_t n = 0; n < stroke_count; n++)
        ranks = strokes[n].rank >= ranks ? strokes[n].rank + 1 : ranks;
    return cp_draw_strokes(grade_this.title, ranks, strokes, stroke_count,
                           (cp_drawing)kind, file);
}

/* The drawing of the case, as three files in the case's folder. */
static void draw(void) {
    static const struct {
        const char *end;
        cp_drawing kind;
    } files[] = {
        {"txt", CP_DRAW_ASCII}, {"svg", CP_DRAW_SVG}, {"csv", CP_DRAW_CSV}};
    if (stroke_count > 0) /* takes precedence over a plan */
        draw_by = draw_strokes;
    for (int n = 0; n < 3 && environment("DRAW") && draw_by != NULL; n++) {
        char name[40];
        snprintf(name, sizeof(name), "drawing-%d.%s", now, files[n].end);
        FILE *file = fopen(name, "w");
        if (file == NULL)
            continue;
        if (draw_by(drawn, (int)files[n].kind, file) != CP_OK)
            fprintf(file, "nothing to draw: %s\n", cp_message());
        fclose(file);
    }
    draw_by = NULL;
}

/* What a case reports. */

void grade_ran(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(board->ran, sizeof(board->ran), format, list);
    va_end(list);
}

void grade_read(const char *section) {
    snprintf(board->section, sizeof(board->section), "%s", section);
}

void grade_fail(const char *format, ...) {
    char text[1200];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    draw();
    board->over = true;
    ck_abort_msg("%s", text);
    abort();
}

void grade_equal(int64_t got, int64_t want, const char *what, ...) {
    char text[400];
    va_list list;
    va_start(list, what);
    vsnprintf(text, sizeof(text), what, list);
    va_end(list);
    grade_hold(got == want, "%s: got %ld, want %ld", text, got, want);
}

void grade_near(const char *what, const float *got, const double *want,
                int64_t rows, int64_t heads, int64_t dim, double tolerance) {
    for (int64_t n = 0; n < rows * heads * dim; n++) {
        const double off = fabs((double)got[n] - want[n]);
        const double allowed = tolerance * fmax(1, fabs(want[n]));
        char at[80];
        if ((double)got[n] == want[n] || (isfinite(want[n]) && off <= allowed))
            continue;
        if (heads == 1 && dim == 1)
            snprintf(at, sizeof(at), "[%ld]", n);
        else if (dim == 1)
            snprintf(at, sizeof(at), "[row %ld][head %ld]", n / heads,
                     n % heads);
        else
            snprintf(at, sizeof(at), "[row %ld][head %ld][%ld]",
                     n / dim / heads, n / dim % heads, n % dim);
        if (!isfinite(off))
            grade_fail("%s%s: got %.9g, want %.9g", what, at, (double)got[n],
                       want[n]);
        grade_fail("%s%s: got %.9g, want %.9g, off by %.3g, allowed %.3g", what,
                   at, (double)got[n], want[n], off, allowed);
    }
}

uint64_t grade_seed(void) {
    return seed + (uint64_t)now;
}

float grade_uniform(void) {
    return (float)(2 * cp_random_uniform(&state) - 1);
}

int64_t grade_between(int64_t least, int64_t most) {
    return least + (int64_t)(cp_random(&state) % (uint64_t)(most - least + 1));
}

/* Guarded memory. It ends at the end of its last page, except for up to 15
 * bytes, so that it is aligned for any type. */

void *grade_room(int64_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t taken = ((size_t)cp_max(bytes, 1) + 15) / 16 * 16;
    const size_t pages = (taken + page - 1) / page * page;
    unsigned char *all = mmap(NULL, pages + 2 * page, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room_count == ROOMS || all == MAP_FAILED ||
        mprotect(all + page, pages, PROT_READ | PROT_WRITE) != 0) {
        fprintf(stderr, "no room for %ld bytes\n", bytes);
        abort();
    }
    /* NaN inside; around it bytes that no copy of a NaN has. */
    memset(all + page, AROUND, pages);
    memset(all + page + pages - taken, 0xFF, (size_t)cp_max(bytes, 0));
    rooms[room_count].base = all + page;
    rooms[room_count].pages = pages;
    rooms[room_count++].bytes = (size_t)bytes;
    return all + page + pages - taken;
}

float *grade_floats(int64_t count) {
    return grade_room(count * (int64_t)sizeof(float));
}

static void look_at_rooms(void) {
    for (int n = 0; n < room_count; n++) {
        const size_t taken = (rooms[n].bytes + 15) / 16 * 16;
        const size_t first = rooms[n].pages - (taken > 0 ? taken : 16);
        for (size_t i = 0; i < rooms[n].pages; i++)
            if ((i < first || i >= first + rooms[n].bytes) &&
                rooms[n].base[i] != AROUND)
                grade_fail("memory of %zu bytes was written at byte %ld",
                           rooms[n].bytes, (long)i - (long)first);
    }
}

/* One case, in its own process. */

static void limit(__rlimit_resource_t what, uint64_t most) {
    setrlimit(what, &(struct rlimit){most, most});
}

static void enter(void) {
    char name[40];
    snprintf(name, sizeof(name), "printed-%d.txt", now);
    const int out = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    close(out);
    limit(RLIMIT_CORE, 0);
    state = grade_seed();
    if (environment("GRADE_GPU")) /* a GPU driver maps memory and opens files */
        return;
    limit(RLIMIT_FSIZE, 1 << 20);
    limit(RLIMIT_NOFILE, 64);
#ifndef __SANITIZE_ADDRESS__
    limit(RLIMIT_AS, (uint64_t)3 << 30);
#endif
}

START_TEST(run_case) {
    grade_this.cases[now - 1].run();
    look_at_rooms();
    draw();
    board->over = true;
}
END_TEST

/* Why it failed, or NULL. */
static const char *run(int number, char *why, size_t room) {
    const int seconds = grade_this.seconds > 0 ? grade_this.seconds : 10;
    Suite *suite = suite_create(grade_this.name);
    TCase *tests = tcase_create(grade_this.name);
    now = number;
    board->over = false;
    board->ran[0] = board->section[0] = '\0';
    tcase_set_timeout(tests, seconds);
    tcase_add_checked_fixture(tests, enter, NULL);
    tcase_add_test(tests, run_case);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_SILENT);
    TestResult **results = srunner_results(runner);
    const bool passed = tr_rtype(results[0]) == CK_PASS;
    const char *message = tr_msg(results[0]) ? tr_msg(results[0]) : "";
    if (strstr(message, "imeout expired"))
        snprintf(why, room, "did not end within %d seconds: %s", seconds,
                 grade_this.late);
    else if (!board->over && strstr(message, "eceived signal 25"))
        snprintf(why, room, "printed or wrote more than a megabyte");
    else if (!board->over && strstr(message, "eceived signal"))
        snprintf(why, room, "crashed: %s", message);
    else if (!board->over)
        snprintf(why, room, "the program was left before the case was over");
    else
        snprintf(why, room, "%s", message);
    const bool held = passed && board->over;
    free(results);
    srunner_free(runner);
    return held ? NULL : why;
}

/* Reports. */

/* Text in lines of at most WIDE columns, broken at spaces. */
static void show_lines(const char *head, const char *text) {
    while (*text != '\0') {
        int length = (int)strcspn(text, "\n");
        if (length > WIDE) {
            for (length = WIDE; length > 0 && text[length] != ' ';)
                length--;
            if (length == 0)
                length = WIDE;
        }
        printf("           %-6s %.*s\n", head, length, text);
        text += length + (text[length] == '\n' || text[length] == ' ');
        head = "";
    }
}

/* The last lines of what the answer printed. */
static void show_printed(void) {
    char name[40], tail[600];
    snprintf(name, sizeof(name), "printed-%d.txt", now);
    FILE *file = fopen(name, "r");
    if (file == NULL)
        return;
    if (fseek(file, -(long)sizeof(tail) + 1, SEEK_END) != 0)
        rewind(file);
    const size_t got = fread(tail, 1, sizeof(tail) - 1, file);
    fclose(file);
    tail[got] = '\0';
    char *from = tail + got;
    for (int lines = 0; from > tail; from--)
        if (from[-1] == '\n' && from[0] != '\0' && ++lines == LAST_LINES)
            break;
    for (char *c = from; *c != '\0'; c++) /* answers may not control the
                                             terminal */
        if ((unsigned char)*c < ' ' && *c != '\n' && *c != '\t')
            *c = '?';
    show_lines("said", from);
}

static void show_drawing(void) {
    char name[40], line[400];
    snprintf(name, sizeof(name), "drawing-%d.txt", now);
    FILE *file = environment("DRAW") ? fopen(name, "r") : NULL;
    if (file == NULL && environment("DRAW"))
        printf("           (this case has nothing to draw)\n");
    if (file == NULL)
        return;
    putchar('\n');
    while (fgets(line, sizeof(line), file))
        printf("    %s", line);
    fclose(file);
    printf("    the same as a picture: build/grade/%s/drawing-%d.svg, .csv\n\n",
           grade_this.name, now);
}

static void report(const grade_case *graded, const char *why, bool ran) {
    const char *book = *board->section ? board->section : grade_this.section;
    if (environment("CSV")) {
        printf("%s,%s,%d,\"%s\",%d,%d\n",
               environment("GRADE_WHO") ? environment("GRADE_WHO") : "",
               grade_this.name, now, graded->name,
               why == NULL ? graded->points : 0, graded->points);
        return;
    }
    char number[12] = " "; /* time.txt is not a case */
    if (graded->run != NULL)
        snprintf(number, sizeof(number), "%d", now);
    printf("  %-5s %3d/%-3d  %s %s\n", why == NULL ? "ok" : "FAIL",
           why == NULL ? graded->points : 0, graded->points, number,
           graded->name);
    if (why != NULL) {
        show_lines("ran", ran ? board->ran : "");
        show_lines(ran ? "found" : "", why);
        if (ran)
            show_printed();
        if (ran && graded->hint != NULL)
            show_lines("hint", graded->hint);
        if (ran) {
            printf("           book   section %s\n", book);
            printf("           again  make grade LAB=%.2s CASE=%d "
                   "GRADE_SEED=%lu\n",
                   grade_this.name, now, seed);
        }
    }
    if (ran)
        show_drawing();
}

/* The hours that the lab took, in its folder: one point. */
static bool grade_time(void) {
    const grade_case graded = {.name = "time.txt: the hours that it took you",
                               .points = 1};
    const char *path = environment("GRADE_TIME");
    FILE *file = path != NULL ? fopen(path, "r") : NULL;
    double hours = 0;
    const bool valid = file != NULL && fscanf(file, "%lf", &hours) == 1 &&
                       hours > 0 && hours < 1000;
    if (file != NULL)
        fclose(file);
    board->ran[0] = '\0';
    now++;
    report(&graded, valid ? NULL : "write a number, as 1.5, into time.txt",
           false);
    return valid;
}

int main(void) {
    const char *given = environment("GRADE_SEED"), *only = environment("CASE");
    const bool csv = environment("CSV") != NULL;
    bool passed[17] = {true};
    int points = 0, of = 0, last = 0;
    seed = given != NULL ? strtoull(given, NULL, 10) : 1;
    board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED)
        return 2;
    if (!csv)
        printf("Lab %s: %s   (GRADE_SEED=%lu)\n", grade_this.name,
               grade_this.title, seed);
    for (int n = 1; grade_this.cases[n - 1].run != NULL; n++) {
        const grade_case *graded = &grade_this.cases[n - 1];
        char why[1500];
        last = n;
        const bool open = only != NULL || passed[graded->needs];
        if (only != NULL && atoi(only) != n)
            continue;
        of += graded->points;
        fflush(stdout);
        now = n;
        snprintf(why, sizeof(why), "needs case %d", graded->needs);
        const char *failed = open ? run(n, why, sizeof(why)) : why;
        passed[n] = failed == NULL;
        points += passed[n] ? graded->points : 0;
        report(graded, failed, open);
    }
    now = last;
    if (only == NULL) {
        points += grade_time();
        of++;
    }
    if (only != NULL && of == 0) {
        fprintf(stderr, "lab %s has cases 1 to %d, not %s\n", grade_this.name,
                last, only);
        return 2;
    }
    if (!csv)
        printf("  Score: %d/%d\n\n", points, of);
    return points == of ? 0 : 1;
}
