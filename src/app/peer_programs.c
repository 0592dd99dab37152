/* What Python runs for us: the programs of the peers. */
#include "app/peer_programs.h"

#include <stdio.h>
#include <string.h>

static const char opening[] =
    "import os, sys, time\n"
    "answers = os.fdopen(os.dup(1), 'w')\n"
    "os.dup2(2, 1)\n"
    "def say(word, what):\n"
    "    print(word, ' '.join(str(what).split()), file=answers, flush=True)\n"
    "try:\n"
    "    MODULES\n"
    "except Exception as error:\n"
    "    say('missing', error)\n"
    "    sys.exit()\n";

static const char torch_body[] =
    "attend = torch.nn.functional.scaled_dot_product_attention\n"
    "torch.set_grad_enabled(False)\n"
    "made = None\n"
    "def make(threads, queries, keys, heads, kv_heads, dim, causal):\n"
    "    torch.set_num_threads(threads)\n"
    "    q = torch.rand(1, heads, queries, dim) - 0.5\n"
    "    k = torch.rand(1, kv_heads, keys, dim) - 0.5\n"
    "    v = torch.rand(1, kv_heads, keys, dim) - 0.5\n"
    "    options = {'is_causal': bool(causal)}\n"
    "    if heads != kv_heads and grouped:\n"
    "        options['enable_gqa'] = True\n"
    "    elif heads != kv_heads:\n"
    "        k = k.repeat_interleave(heads // kv_heads, 1)\n"
    "        v = v.repeat_interleave(heads // kv_heads, 1)\n"
    "    return (q, k, v), options\n"
    "def work(numbers):\n"
    "    global made\n"
    "    if made is None or made[0] != numbers:\n"
    "        made = numbers, make(*numbers)\n"
    "    tensors, options = made[1]\n"
    "    start = time.perf_counter()\n"
    "    attend(*tensors, **options)\n"
    "    return time.perf_counter() - start\n"
    "try:\n"
    "    one = torch.zeros(1, 2, 1, 8)\n"
    "    attend(one, one[:, :1], one[:, :1], enable_gqa=True)\n"
    "    grouped = True\n"
    "except TypeError:\n"
    "    grouped = False\n";

static const char llama_body[] =
    "path, threads, room = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])\n"
    "model = llama_cpp.Llama(path, n_ctx=room, n_threads=threads,\n"
    "    n_threads_batch=threads, n_batch=2048, n_ubatch=512, verbose=False)\n"
    "def best():\n"
    "    scores = llama_cpp.llama_get_logits_ith(model._ctx.ctx, -1)\n"
    "    size = (model.n_vocab(),)\n"
    "    return int(numpy.ctypeslib.as_array(scores, size).argmax())\n"
    "def work(numbers):\n"
    "    prompt, count = numbers\n"
    "    ids = [(7919 * i + 1) % model.n_vocab() for i in range(prompt)]\n"
    "    if prompt > 0:\n"
    "        model.reset()\n"
    "    start = time.perf_counter()\n"
    "    if prompt > 0:\n"
    "        model.eval(ids)\n"
    "    token = best()\n"
    "    for i in range(count):\n"
    "        model.eval([token])\n"
    "        token = best()\n"
    "    return time.perf_counter() - start\n";

static const char closing[] =
    "say('ready', VERSION)\n"
    "for line in sys.stdin:\n"
    "    try:\n"
    "        say('seconds', work([int(word) for word in line.split()]))\n"
    "    except Exception as error:\n"
    "        say('failed', error)\n";

static const struct {
    const char *name, *imports, *body, *version;
} peers[] = {
    {"torch", "import torch", torch_body, "torch.__version__"},
    {"llama", "import llama_cpp, numpy", llama_body, "llama_cpp.__version__"},
};

/* Copy text to a program of which used bytes are written, with word replaced
 * by something else. */
static void program_add(char *program, size_t size, const char *text,
                        const char *word, const char *otherwise) {
    const size_t used = strlen(program);
    const char *at = strstr(text, word);
    if (at == NULL)
        snprintf(program + used, size - used, "%s", text);
    else
        snprintf(program + used, size - used, "%.*s%s%s", (int)(at - text),
                 text, otherwise, at + strlen(word));
}

void cp_peer_program(const char *name, char *program, size_t size) {
    int which = 0;
    while (strcmp(peers[which].name, name) != 0)
        which++;
    program[0] = '\0';
    program_add(program, size, opening, "MODULES", peers[which].imports);
    program_add(program, size, peers[which].body, "MODULES", "");
    program_add(program, size, closing, "VERSION", peers[which].version);
}
