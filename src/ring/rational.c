/* Tangled from book/10-choose.nw; edit the chapter. */
/* Exact fractions: lowest terms always, no answer instead of a wrong one. */
#include "ring/rational.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

__extension__ typedef unsigned __int128 unsigned_wide;

static cp_wide magnitude(cp_wide a) {
    return a < 0 ? -a : a;
}

static cp_wide common_divisor(cp_wide a, cp_wide b) {
    a = magnitude(a);
    b = magnitude(b);
    while (b != 0) {
        const cp_wide rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static const cp_rational none = {0, 0};
static const cp_wide LARGEST = (cp_wide)(~(unsigned_wide)0 / 2);

static bool multiply(cp_wide a, cp_wide b, cp_wide *product) {
    return !__builtin_mul_overflow(a, b, product) && *product >= -LARGEST;
}

static cp_rational lowest(cp_wide over, cp_wide under) {
    if (under == 0 || over < -LARGEST || under < -LARGEST)
        return none;
    const cp_wide divisor = common_divisor(over, under);
    const cp_wide sign = under < 0 ? -1 : 1;
    return (cp_rational){sign * (over / divisor), sign * (under / divisor)};
}

cp_rational cp_rational_of(int64_t over, int64_t under) {
    return lowest(over, under);
}

bool cp_rational_fits(cp_rational a) {
    return a.under > 0;
}

cp_rational cp_rational_multiply(cp_rational a, cp_rational b) {
    cp_rational product = none;
    if (a.under == 0 || b.under == 0)
        return none;
    const cp_wide left = common_divisor(a.over, b.under);
    const cp_wide right = common_divisor(b.over, a.under);
    if (multiply(a.over / left, b.over / right, &product.over) &&
        multiply(a.under / right, b.under / left, &product.under))
        return product;
    return none;
}

cp_rational cp_rational_divide(cp_rational a, cp_rational b) {
    return cp_rational_multiply(a, lowest(b.under, b.over));
}

cp_rational cp_rational_scale(cp_rational a, int64_t over, int64_t under) {
    return cp_rational_multiply(a, cp_rational_of(over, under));
}

cp_rational cp_rational_add(cp_rational a, cp_rational b) {
    cp_wide left, right, over, under;
    if (a.under == 0 || b.under == 0)
        return none;
    const cp_wide shared = common_divisor(a.under, b.under);
    if (!multiply(a.over, b.under / shared, &left) ||
        !multiply(b.over, a.under / shared, &right) ||
        __builtin_add_overflow(left, right, &over) ||
        !multiply(a.under, b.under / shared, &under))
        return none;
    return lowest(over, under);
}

cp_rational cp_rational_subtract(cp_rational a, cp_rational b) {
    b.over = -b.over;
    return cp_rational_add(a, b);
}

/* The whole part, rounded down; what remains is in *rest, 0 <= rest < 1. */
static cp_wide whole_part(cp_rational a, cp_wide *rest) {
    *rest = a.over % a.under;
    const cp_wide whole = a.over / a.under - (*rest < 0);
    *rest += *rest < 0 ? a.under : 0;
    return whole;
}

int cp_rational_compare(cp_rational a, cp_rational b) {
    assert(a.under > 0 && b.under > 0);
    for (int sign = 1;; sign = -sign) {
        cp_wide rest_a, rest_b;
        const cp_wide left = whole_part(a, &rest_a);
        const cp_wide right = whole_part(b, &rest_b);
        if (left != right)
            return left < right ? -sign : sign;
        if (rest_a == 0 || rest_b == 0)
            return sign * ((rest_a != 0) - (rest_b != 0));
        a = (cp_rational){a.under, rest_a};
        b = (cp_rational){b.under, rest_b};
    }
}

double cp_rational_value(cp_rational a) {
    return a.under == 0 ? NAN : (double)a.over / (double)a.under;
}

cp_rational_words cp_rational_text(cp_rational a) {
    cp_rational_words words;
    const size_t room = sizeof(words.text);
    const bool small = magnitude(a.over) <= 999999 && a.under <= 999999;
    if (a.under == 0)
        snprintf(words.text, room, "none");
    else if (small && a.under == 1)
        snprintf(words.text, room, "%d", (int)a.over);
    else if (small && magnitude(a.over) < a.under)
        snprintf(words.text, room, "%d/%d", (int)a.over, (int)a.under);
    else
        snprintf(words.text, room, "%.6g", cp_rational_value(a));
    return words;
}

typedef struct {
    const char *at;
    cp_rational number; /* all digits, as a whole number */
    int digits, behind; /* how many; how many of them after the point */
} decimal;

static void read_digits(decimal *decimal, bool behind) {
    for (; *decimal->at >= '0' && *decimal->at <= '9'; decimal->at++) {
        decimal->number = cp_rational_scale(decimal->number, 10, 1);
        decimal->number = cp_rational_add(
            decimal->number, cp_rational_of(*decimal->at - '0', 1));
        decimal->digits++;
        decimal->behind += behind;
    }
}

static cp_rational power_of_ten(int power) {
    cp_rational result = cp_rational_of(1, 1);
    for (; power > 0 && cp_rational_fits(result); power--)
        result = cp_rational_scale(result, 10, 1);
    for (; power < 0 && cp_rational_fits(result); power++)
        result = cp_rational_scale(result, 1, 10);
    return result;
}

static bool read_exponent(decimal *decimal, int *power) {
    *power = -decimal->behind;
    if (*decimal->at != 'e' && *decimal->at != 'E')
        return true;
    char *end;
    const char first = decimal->at[1];
    const char second = first == '+' || first == '-' ? decimal->at[2] : first;
    const long exponent = strtol(decimal->at + 1, &end, 10);
    if (second < '0' || second > '9' || labs(exponent) > 999)
        return false;
    *power += (int)exponent;
    decimal->at = end;
    return true;
}

static bool read_decimal(const char **text, cp_rational *out) {
    int power;
    const bool negative = **text == '-';
    decimal decimal = {.at = *text + negative, .number = {0, 1}};
    read_digits(&decimal, false);
    if (*decimal.at == '.') {
        decimal.at++;
        read_digits(&decimal, true);
    }
    if (decimal.digits == 0 || !read_exponent(&decimal, &power))
        return false;
    *text = decimal.at;
    *out = cp_rational_multiply(decimal.number, power_of_ten(power));
    if (negative)
        out->over = -out->over;
    return true;
}

cp_status cp_rational_parse(const char *name, const char *text,
                            cp_rational *out) {
    const char *at = text;
    cp_rational number, under = {1, 1};
    if (!read_decimal(&at, &number) ||
        (*at == '/' && (at++, !read_decimal(&at, &under))) || *at != '\0')
        return cp_fail(CP_INVALID, "%s %s: not a number", name, text);
    number = cp_rational_divide(number, under);
    if (!cp_rational_fits(number))
        return cp_fail(CP_INVALID,
                       "%s %s: does not fit into a fraction of "
                       "128 bits",
                       name, text);
    *out = number;
    return CP_OK;
}
