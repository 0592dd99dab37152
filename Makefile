# The Long Ring. `make help` lists the targets. Building needs no noweb: the
# committed C files are compiled, and `make tangle` writes those from book/.
SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all
# Use all cores unless -j is given; several goals are made one after the other.
ifeq ($(MAKELEVEL)$(word 2,$(MAKECMDGOALS))$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

PREFIX  ?= /usr/local
CFLAGS  ?= -O3 -march=native
VERSION := 0.1
# A tree in which only data changed is not dirty: the data are the result.
COMMIT  := $(shell c=$$(git describe --always 2>/dev/null) || { echo unknown; exit; }; \
             git diff --quiet HEAD -- . ':!figures/data' || c=$$c-dirty; echo $$c)
MODEL   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/long-ring/SmolLM2-135M-Instruct.Q4_1.gguf

# What `make demo` runs. Its text is an old version of chapters 8 and 9, kept so
# that the answers do not change.
DEMO      = $(B)/longring chat --model $(MODEL) --ranks 4 --file book/demo.txt --compare --trace $(B)/demo-trace.json \
            --ask "What is a conversation?" --ask "What does each turn bring?"

# Flags that apply whatever CFLAGS is. Never -ffast-math: masks are -inf. And
# clang must not contract two roundings into one (gcc does not, under -std=c11).
# -iquote and not -I: <check.h> is the test library's, "check.h" is ours.
# Only static functions pass vectors, so their ABI does not matter.
# A field that an initialiser leaves out is 0, which is what we mean.
flags     = -std=c11 -ffp-contract=off -fopenmp -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wconversion -Wno-psabi $(CFLAGS) \
            -iquote src -iquote . $(addprefix -isystem ,$(wildcard /usr/include/*/blis-openmp)) $(mpi)
# MPI, if installed: ompi-c or mpich in pkg-config. MPI= builds without it.
MPI      ?= $(firstword $(foreach m,ompi-c mpich,$(shell pkg-config --exists $(m) 2>/dev/null && echo $(m))))
libraries := -lblis -lpcre2-8 -lpthread -lm $(if $(MPI),$(shell pkg-config --libs $(MPI)))
mpi      := $(if $(MPI),-DCP_HAVE_MPI $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(MPI))))
identity  = -DCP_VERSION='"$(VERSION)"' -DCP_COMMIT='"$(COMMIT)"'

# Debian packages, each with a file under /usr that shows it is installed.
FOR_BUILD := gcc:bin/gcc libc6-dev:include/stdlib.h pkg-config:bin/pkg-config check:include/check.h \
             libpcre2-dev:include/pcre2.h libblis-openmp-dev:include/*/blis-openmp/blis.h
FOR_BOOK  := noweb:bin/noweave poppler-utils:bin/pdftotext texlive-luatex:share/texlive/texmf-dist/tex/luatex/luaotfload/luaotfload-main.lua \
             texlive-latex-recommended:share/texlive/texmf-dist/tex/latex/memoir/memoir.cls \
             texlive-pictures:share/texlive/texmf-dist/tex/latex/pgfplots/pgfplots.sty \
             fonts-inconsolata:share/fonts/truetype/inconsolata/Inconsolata.otf \
             fonts-texgyre:share/texmf/fonts/opentype/public/tex-gyre/texgyrepagella-regular.otf \
             fonts-texgyre-math:share/texmf/fonts/opentype/public/tex-gyre-math/texgyrepagella-math.otf
FOR_MPI   := libopenmpi-dev:lib/*/openmpi/include/mpi.h openmpi-bin:bin/mpirun
FOR_LABS  := noweb:bin/noweave python3:bin/python3
FOR_CHECK := $(FOR_LABS) g++:bin/g++ procps:bin/pgrep
FOR_GPU   := $(FOR_BUILD) g++:bin/g++
FOR_CI    := noweb:bin/noweave clang:bin/clang clang-format:bin/clang-format libomp-dev:lib/llvm-*/lib/clang/*/include/omp.h
FOR_EXPLORER := clang:bin/clang lld:bin/wasm-ld wasi-libc:lib/wasm32-wasi/libc.a libclang-rt-dev-wasm32:lib/llvm-*/lib/clang/*/lib/wa*/libclang_rt.builtins*.a
FOR_SITE  := $(FOR_BOOK) $(FOR_EXPLORER) pandoc:bin/pandoc python3:bin/python3
FOR_CHECK_SITE := noweb:bin/noweave python3:bin/python3 chromium:bin/chromium chromium-driver:bin/chromedriver
FOR_ARM   := gcc-aarch64-linux-gnu:bin/aarch64-linux-gnu-gcc libc6-dev-arm64-cross:aarch64-linux-gnu/include/stdlib.h qemu-user:bin/qemu-aarch64
missing    = $(foreach p,$(1),$(if $(wildcard /usr/$(lastword $(subst :, ,$(p)))),,$(firstword $(subst :, ,$(p)))))
install    = $(if $(strip $(call missing,$(1))),tests/harness/install-packages $(call missing,$(1)),:)

# Everything is built under B; sanitize and warnings use other directories.
B        ?= build
# These files of src include CUDA.
SEE_CUDA  = src/app/backend_cuda.c $(wildcard src/measure/*_device.c)
# These need MPI, and are left out without it.
SEE_MPI   = src/app/backend_mpi.c reference/run/processes.c tests/test_mpi.c figures/measure_mpi.c
sources   = $(filter-out $(if $(MPI),,$(SEE_MPI)),$(wildcard $(1)))
OBJECTS   = $(patsubst %.c,$(B)/%.o,$(filter-out $(SEE_CUDA),$(call sources,src/*/*.c reference/*/*.c))) $(B)/built-in.o
BUILT_IN  = $(wildcard figures/data/machines/*.machine figures/data/models/*.model)
SUITES    = $(patsubst %.c,$(B)/%,$(call sources,tests/test_*.c))
HARNESS   = $(patsubst %.c,$(B)/%.o,$(filter-out tests/harness/on-device.c tests/harness/on-emulator.c tests/harness/which-gpu.c tests/harness/tiny-model.c,$(wildcard tests/harness/*.c)))
# The programs that write figures/data, and what they share.
WRITERS   = $(patsubst %.c,$(B)/%,$(call sources,figures/measure_*.c) figures/paper.c figures/fit.c figures/rule_lines.c figures/ladder/measure_ladder.c)
SHARED    = $(filter-out $(WRITERS:%=%.o),$(patsubst %.c,$(B)/%.o,$(call sources,figures/*.c)))
LADDER    = $(patsubst %.c,$(B)/%.o,$(wildcard figures/ladder/rungs*.c))
# The CUDA path on any machine: cuda/ and the emulator of CUDA and NCCL, linked
# into the suites that need them, never into the library.
EMULATOR  = $(patsubst %,$(B)/emulator/%.o,$(SEE_CUDA) $(wildcard cuda/*/*.c cuda/*/*.cu tests/emulator/*.c))
ON_EMULATOR = $(filter $(addprefix $(B)/tests/test_,emulator% streams% kernels% hopper% prefill% multiply% gpu% graphs% traces% soak),$(SUITES))
emulator  = -isystem tests/emulator
# In these suites emulator/races.c sees the kernels' loads and stores, except under a sanitizer.
WATCHED   = $(addprefix $(B)/tests/test_,kernels hopper prefill gpu_state)
watched   = $(if $(findstring -fsanitize,$(CFLAGS)),,-fsanitize=thread)
# The same on a real GPU.
NVCC     ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc))
# Without its first word a recipe would begin with a dash, and make would ignore its exit status.
nvcc      = $(or $(NVCC),nvcc)
CUDA_HOME ?= $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
ON_GPU    = $(addprefix $(B)/gpu/test_,kernels prefill multiply streams streams_processes graphs traces gpu_model gpu_state gpu_calibrate)
GPU       = $(patsubst %,$(B)/gpu/%.o,$(SEE_CUDA) $(wildcard cuda/*/*.c cuda/*/*.cu))
for_gpu  := -lcublasLt -lnccl
real_cuda = -isystem $(CUDA_HOME)/include -iquote tests
REAL_CUDA ?= $(patsubst %/nccl.h,%,$(firstword $(wildcard /usr/local/cuda/include/nccl.h)))
# Attention kernels for Python, on a GPU and on the emulator.
HELD      = figures/gpu/held.cu src/measure/attention_device.c $(patsubst %,cuda/kernels/%,attend_loops.cu tiles.cu attend_latent.cu attend_few.cu prefill.cu maps.c)
LIBRARY   = $(B)/liblongring.a
PROGRAM   = $(B)/longring
NAMED     = $(patsubst %.c,$(B)/%.o,$(shell grep -ls CP_COMMIT src/*/*.c reference/*/*.c))
PYTHON   ?= python3
data      = figures/data
write     = figures/write-data $(data)
Q         = $(if $(V),,@)# make V=1 shows whole commands
again     = $(MAKE) --no-print-directory

all: $(LIBRARY) $(PROGRAM) ## build build/longring and build/liblongring.a (the default)
$(LIBRARY): $(filter-out $(B)/src/app/main.o,$(OBJECTS))
	@echo "  ar   $@"; rm -f $@
	$(Q)ar rcs $@ $^
$(B)/longring: $(B)/src/app/main.o $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $^ $(libraries)
$(B)/tests/test_%: $(B)/tests/test_%.o $(HARNESS) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $(filter %.o,$^) $(LIBRARY) $$(pkg-config --libs check) $(libraries)
$(filter-out $(WATCHED),$(ON_EMULATOR)): $(EMULATOR)
$(WATCHED): $(EMULATOR:.cu.o=.cu.watched.o)
$(B)/tests/test_predictions: $(SHARED)
$(B)/tests/test_gpu_commands: $(B)/emulator/measure_gpu $(B)/tiny-model $(B)/tests/test_multiply | held
$(B)/tests/test_bench: $(B)/figures/measure_million $(B)/figures/tools.o
# The whole program on the emulator, with GPUs in its table of backends.
$(B)/emulator/longring: $(B)/emulator/src/app/backends.c.o $(B)/emulator/tests/harness/on-emulator.c.o $(EMULATOR) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $^ $(libraries)
$(B)/tiny-model: $(B)/tests/harness/tiny-model.o $(HARNESS) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $^ $$(pkg-config --libs check) $(libraries)
$(B)/emulator/src/app/backends.c.o: private flags += -DCP_HAVE_CUDA
$(B)/emulator/measure_gpu: $(B)/emulator/figures/gpu/measure_gpu.c.o $(EMULATOR) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $^ $(libraries)
$(B)/emulator/libheld.so: $(patsubst %,$(B)/emulator/%.o,$(HELD) $(wildcard tests/emulator/*.c)) $(patsubst %.c,$(B)/%.o,$(wildcard src/ground/*.c) src/tokens/span.c)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -shared -Wl,-Bsymbolic -o $@ $^ -lm
held: # for Python, whatever flags the rest is built with
	+@$(again) -s build/pic/emulator/libheld.so B=build/pic MPI= CFLAGS="-O1 -fPIC"
$(ON_EMULATOR:%=%.o): private flags += $(emulator)
$(B)/emulator/%.c.o: %.c $(B)/flags
	@echo "  cc   $< (emulator)"; mkdir -p $(@D)
	$(Q)$(CC) $(flags) $(emulator) -MD -MP -c -o $@ $<
$(B)/emulator/%.cu.o: %.cu $(B)/flags
	@echo "  cc   $< (emulator)"; mkdir -p $(@D)
	$(Q)$(CC) -x c -include tests/emulator/kernel.h $(flags) $(emulator) -MD -MP -c -o $@ $<
$(B)/emulator/%.cu.watched.o: %.cu $(B)/flags
	@echo "  cc   $< (emulator, watched)"; mkdir -p $(@D)
	$(Q)$(CC) -x c -include tests/emulator/kernel.h $(flags) $(emulator) $(watched) -MD -MP -c -o $@ $<
$(B)/tests/test_emulator_races.o: private flags += $(watched)
$(B)/real-%.o: tests/emulator/%.c $(B)/flags
	$(Q)$(CC) $(flags) -isystem $(REAL_CUDA) -c -o $@ $<
$(WRITERS): $(B)/%: $(B)/%.o $(SHARED) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -o $@ $^ $(libraries)
$(B)/figures/ladder/measure_ladder: $(LADDER)
$(B)/%.o: %.c $(B)/flags
	@echo "  cc   $<"; mkdir -p $(@D)
	$(Q)$(CC) $(flags) $(if $(filter $@,$(NAMED)),$(identity)) -MMD -MP -c -o $@ $<
$(NAMED): $(B)/identity
# Each of these two files changes only when what it records changes. A new
# compiler is tested for OpenMP first, so that the linker need not complain.
$(B)/flags $(B)/identity: force
	@mkdir -p $(@D); echo "$(CC) $($(@F))" | cmp -s - $@ || { $(if $(filter flags,$(@F)),$(ask_openmp) &&) echo "$(CC) $($(@F))" > $@; }
ask_openmp = { echo 'int main(void) { return 0; }' | $(CC) -fopenmp -x c -o $(B)/openmp - 2>/dev/null || \
  { echo "$(CC) has no OpenMP: use gcc, or clang with libomp-dev; on a Mac, in a Debian shell (README.md)" >&2; exit 1; }; }
# Machine and model descriptions, as text in the library.
$(B)/built-in.c: $(BUILT_IN) tests/harness/built-in
	@mkdir -p $(@D); tests/harness/built-in $(BUILT_IN) >$@
$(B)/built-in.o: $(B)/built-in.c $(B)/flags
	$(Q)$(CC) $(flags) -c -o $@ $<
-include $(wildcard $(B)/src/*/*.d $(B)/reference/*/*.d $(B)/tests/*.d $(B)/tests/*/*.d $(B)/figures/*.d $(B)/figures/ladder/*.d $(B)/gpu/*/*.d $(B)/gpu/*/*/*.d $(B)/emulator/*/*/*.d) $(EMULATOR:.o=.d)

check: ## install what is missing, build, and run every test
	@echo "make check: compiles, grades lab answers and runs $(words $(SUITES)) suites; about $(minutes) minutes on this machine's $(cores) cores"
	+@$(again) packages
	+@$(again) check-labs suites
cores     = $(shell nproc 2>/dev/null || echo 1)
minutes   = $(shell echo $$((4 + 10 / $(cores))))
packages: # what check needs; without MPI, the build and the tests leave it out
	@$(call install,$(FOR_BUILD) $(FOR_CHECK))
	@$(if $(MPI),:,$(call install,$(FOR_MPI)) || echo "no MPI here: building and testing without it")
suites: all $(B)/emulator/longring $(SUITES)
	@tests/harness/arrows
	@tests/harness/check-make
	@tests/harness/words
	@tests/harness/leaks
	@tests/harness/transcripts $(B)/longring
	+@$(again) -s install DESTDIR=$(CURDIR)/$(B)/installed PREFIX=/usr >/dev/null
	@tests/harness/check-installed $(CURDIR)/$(B)/installed /usr "$(CC) $(CFLAGS)"
	@$(run_suites) $(SUITES)
run_suites = LONGRING=$(B)/longring ONE_PROCESS="$(one_process)" tests/harness/run-suites
# As on a GPU. The address sanitizer ends the process at a finding, so there each
# test has its own process.
one_process = $(if $(findstring -fsanitize,$(CFLAGS)),,$(ON_EMULATOR))
# RUN= only links, for when the suites have just been run.
RUN      ?= tests/harness/run-suites
chapters: all $(B)/emulator/longring $(SUITES) ## build and test each chapter with only the chapters before it
	@LONGRING=$(B)/longring SHARED="$(HARNESS) $(SHARED) $(EMULATOR)" tests/harness/chapters $(B) "$(CC) $(flags)" "$$(pkg-config --libs check) $(libraries)" $(RUN)
need_nvcc = test -n "$(NVCC)" || { echo "make $@: no nvcc found; name it with NVCC=..." >&2; exit 1; }
check-gpu: ## build cuda/ with nvcc and run its suites on a GPU; fails without one
	@$(need_nvcc)
	@$(call install,$(FOR_GPU))
	+@$(again) gpu-programs all $(B)/tests/test_gpu_commands
	@LONGRING=$(B)/longring LONGRING_GPU=$(B)/gpu/longring ONE_PROCESS="$(ON_GPU)" tests/harness/check-gpu $(B)/gpu/which-gpu $(ON_GPU) $(B)/tests/test_gpu_commands
gpu: ## build build/gpu/longring, which has --on cuda, and the suites for a GPU
	@$(need_nvcc)
	@$(call install,$(FOR_GPU))
	+@$(again) gpu-programs
gpu-programs: $(ON_GPU) $(B)/gpu/which-gpu $(B)/gpu/measure_gpu $(B)/gpu/longring
# Hopper-specific instructions run on no other GPU, not even on a later one.
cards     = -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
$(patsubst %,$(B)/gpu/%.o,$(shell grep -ls 'kernels/hopper.h"' cuda/kernels/*.cu)): private cards = -gencode arch=compute_90a,code=sm_90a
# If ptxas serialises products or cannot hand over registers (C75..), it only prints a note.
refuse    = 2>&1 | awk '{ print } /[(]C75/ { bad = 1 } END { exit bad }' >&2
$(B)/gpu/%.cu.o: %.cu
	@echo "  nvcc $<"; mkdir -p $(@D)
	$(Q)$(nvcc) -O3 -std=c++17 $(packed) $(cards) -I. -Isrc -MD -MF $(@:.o=.d) -c -o $@ $< $(refuse)
$(B)/gpu/%.c.o: %.c $(B)/flags
	@echo "  cc   $< (GPU)"; mkdir -p $(@D)
	$(Q)$(CC) $(flags) $(real_cuda) -MD -MP -c -o $@ $<
$(B)/gpu/test_%: $(B)/gpu/tests/test_%.c.o $(B)/gpu/tests/harness/on-device.c.o $(GPU) $(HARNESS) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(nvcc) $(cudart) -o $@ $^ -Xcompiler -fopenmp $$(pkg-config --libs check) $(for_gpu) $(libraries)
$(B)/gpu/longring: $(B)/gpu/src/app/backends.c.o $(B)/src/app/main.o $(GPU) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(nvcc) $(cudart) -o $@ $^ -Xcompiler -fopenmp $(for_gpu) $(libraries)
$(B)/gpu/src/app/backends.c.o: private flags += -DCP_HAVE_CUDA
$(B)/gpu/measure_gpu: $(B)/gpu/figures/gpu/measure_gpu.c.o $(B)/gpu/tests/harness/on-device.c.o $(GPU) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(nvcc) $(cudart) -o $@ $^ -Xcompiler -fopenmp $(for_gpu) $(libraries)
$(B)/gpu/which-gpu: $(B)/gpu/tests/harness/which-gpu.c.o $(GPU) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(nvcc) $(cudart) -o $@ $^ -Xcompiler -fopenmp $(for_gpu) $(libraries)
$(B)/gpu/libheld.so: $(patsubst %,$(B)/gpu/%.o,$(HELD)) $(LIBRARY)
	@echo "  link $@"
	$(Q)$(nvcc) $(cudart) -shared -Xlinker -Bsymbolic,-z,defs -o $@ $^
# Programs for another machine, perhaps an older one.
PORTABLE  = B=build/portable MPI= CFLAGS="-O3 -march=x86-64-v3 -fPIC" cudart="-cudart shared" packed="--compress-mode=size -Xcompiler -fPIC"
first-gpu: ## ten minutes on a new GPU: suites, figures beside predictions; log and CSV in OUT
	+@test -x $(B)/first-gpu/longring || $(again) first-gpu-pack
	@tests/harness/first-gpu $(B)/first-gpu
first-gpu-pack: ## pack what first-gpu builds, for a machine with only a driver and Python
	@$(need_nvcc)
	@$(call install,$(FOR_GPU))
	+@$(again) $(PORTABLE) gpu-programs build/portable/tiny-model build/portable/gpu/libheld.so
	@tests/harness/first-gpu-pack build/portable $(B)/first-gpu
count-gpu: ## count the GPU resources of kernels and plans, by nvcc; fails over a budget
	@$(need_nvcc)
	+@$(again) $(B)/tiny-model $(B)/emulator/longring
	@NVCC=$(NVCC) $(write)/gpu-counts.csv figures/gpu/count kernels $(B)
	@$(write)/gpu-plans.csv figures/gpu/count plans $(B); grep -v '^#' $(data)/gpu-plans.csv
bench: all ## measure this machine into figures/data/bench.csv and bench-model.csv
	@figures/write-bench $(data)/bench.csv $(PROGRAM) bench --csv
	@figures/write-bench $(data)/bench-model.csv $(PROGRAM) bench --csv --model $(MODEL) || [ $$? = 1 ]
rivals: all ## measure PyTorch and llama.cpp beside us into figures/data (PYTHON=... with torch, llama_cpp)
	@figures/write-bench $(data)/bench-torch.csv $(PYTHON) figures/rivals.py torch $(PROGRAM); torch=$$?; \
	figures/write-bench $(data)/bench-llama.csv $(PYTHON) figures/rivals.py llama $(PROGRAM) $(MODEL); \
	case $$torch$$? in 00|01|10) ;; *) echo "make $@: a peer failed, or neither is here; name a Python that has torch or llama_cpp with PYTHON=..." >&2; exit 1;; esac
rivals-gpu: gpu ## measure cuDNN, FlashAttention 3 and FlashInfer beside us on a GPU into figures/data (PYTHON=... with torch)
	@figures/write-bench $(data)/bench-gpu.csv $(PYTHON) figures/gpu/rivals.py prefill decode $(B)/gpu/longring
writers: $(WRITERS)
measure: all writers $(B)/emulator/longring $(B)/tiny-model ## measure what the book's other figures show (ONLY="ring-cpu ...": only those)
	@MODEL=$(MODEL) figures/measure $(if $(filter command,$(origin ONLY)),$(ONLY))
paper: writers ## predict the paper's tables and figures, and score its rules, into figures/data
	@$(write)/predictions.csv $(B)/figures/paper predictions
	@$(write)/prediction-errors.csv $(B)/figures/paper errors
	@$(write)/what-if.csv $(B)/figures/paper what-if
	@for n in 6 7 8 9 10; do $(write)/figure-$$n.csv $(B)/figures/paper figure-$$n || exit 1; done
	@for n in lines table-4 peak reached; do $(write)/choose-$$n.csv $(B)/figures/rule_lines $$n || exit 1; done
	@$(write)/choose-cpu-lines.csv $(B)/figures/rule_lines cpu $(data)/choose-cpu.csv
	@$(write)/choose-cpu-scores.csv $(B)/figures/rule_lines score $(data)/choose-cpu.csv laptop smollm2-135m
fit: writers ## fit the constants of the paper's cluster, test what they depend on, and predict the paper again
	@$(B)/figures/fit machine >$(B)/gtt.machine && cp $(B)/gtt.machine $(data)/machines/gtt.machine
	+@$(again) -s writers
	@for n in choices without decode seeds constants noise; do $(write)/fit-$$n.csv $(B)/figures/fit $$n || exit 1; done
	+@$(again) -s paper
sanitized = ASAN_OPTIONS=allocator_may_return_null=1 LSAN_OPTIONS=suppressions=tests/harness/leaks.txt:print_suppressions=0
in_asan   = B=build/asan CFLAGS="-O2 -g1 -march=native -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
sanitize: ## build with address and undefined-behaviour checks in build/asan, and run every test (TURN=k/n: some suites)
	@$(call install,$(FOR_BUILD))
	+@$(sanitized) CK_TIMEOUT_MULTIPLIER=5 $(again) sanitized $(in_asan)
# Nothing is built for a suite whose turn it is not.
in_turn   = $(if $(TURN),$(shell printf '%s\n' $(SUITES) | awk '{ split("$(TURN)", turn, "/") } (NR - turn[1]) % turn[2] == 0'),$(SUITES))
sanitized: all $(B)/emulator/longring $(in_turn)
	@tests/harness/transcripts $(B)/longring
	@$(run_suites) $(in_turn)
soak_time = $(or $(TIME),600)
kills: all $(B)/tiny-model ## kill -9 COUNT=500 MPI ranks at random moments (SEED=N): the right tokens must come, or a line that says why not
	@LONGRING=$(PROGRAM) TINY_MODEL=$(B)/tiny-model tests/harness/kill-ranks $(or $(COUNT),500) $(SEED)
soak: ## random conversations in the sanitize build, for TIME=600 seconds from SEED=1 on (TIME=0: only that seed; KIND=talks, rings or processes)
	@$(call install,$(FOR_BUILD))
	+@$(again) build/asan/longring build/asan/tests/test_soak $(in_asan)
	@$(sanitized) LONGRING=$(CURDIR)/build/asan/longring OMP_WAIT_POLICY=passive SOAK_SECONDS=$(soak_time) SOAK_SEED=$(or $(SEED),1) SOAK_KIND=$(KIND) \
	  CK_TIMEOUT_MULTIPLIER=$(shell echo $$(($(soak_time) / 20 + 5))) build/asan/tests/test_soak
fuzz: ## feed made-up files and words to every parser (TIME=seconds each, ONLY="models ...": only those)
	@$(call install,$(FOR_BUILD) $(FOR_CI))
	+@$(again) -s build/fuzz/fuzz B=build/fuzz MPI= CC=clang \
	  CFLAGS="-O1 -g -march=native -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
	@tests/harness/fuzz build/fuzz/fuzz $(or $(TIME),300) $(if $(filter command,$(origin ONLY)),$(ONLY))
$(B)/fuzz: $(B)/tests/fuzz/fuzz.o $(B)/tests/harness/tiny_gguf.o $(LIBRARY)
	@echo "  link $@"
	$(Q)$(CC) $(flags) -fsanitize=fuzzer -o $@ $^ $$(pkg-config --libs check) $(libraries)
mutants: ## put known faults into a copy of the sources, one by one; suites must find each (ONLY=name, TURN=k/n: some of them)
	@$(call install,$(FOR_BUILD) python3:bin/python3)
	@tests/harness/mutants $(B) $(if $(filter command,$(origin ONLY)),$(ONLY))
# The labs' skeletons from the chapters, whatever was written into exercises/.
SKELETONS = build/skeletons/exercises
skeletons = rm -rf build/skeletons; book/tangle build/skeletons book/labs/[0-9]*.nw
skeletons:
	@$(skeletons)
# clang need not make code for its warnings, and gcc must.
COMPILERS ?= gcc clang
warnings: ## compile everything with gcc and with clang; any warning is an error
	@$(call install,$(FOR_BUILD) $(FOR_CI)); $(skeletons)
	+@for cc in $(COMPILERS); do case $$cc in clang*) made=-fsyntax-only;; *) made=-c;; esac; \
	  $(again) -s objects B=build/$$cc CC=$$cc CFLAGS="$(CFLAGS) -Werror $$made" && echo "$$cc: no warnings" || exit 1; done
LABS_C    = $(patsubst %.c,$(B)/%.o,$(wildcard exercises/*/grade.c $(SKELETONS)/*/*.c tests/harness/grader/*.c)) $(patsubst %,$(B)/emulator/%.o,$(wildcard $(SKELETONS)/*/*.cu))
$(B)/exercises/%.o $(B)/$(SKELETONS)/%.o: private flags += -Wno-unused-parameter -iquote $(dir $<) $(emulator)
$(B)/emulator/$(SKELETONS)/%.cu.o: private flags += -Wno-unused-parameter
objects: $(EMULATOR:.cu.o=.cu.watched.o) $(LABS_C) $(OBJECTS) $(HARNESS) $(SUITES:%=%.o) $(WRITERS:%=%.o) $(SHARED) $(LADDER) $(EMULATOR) $(B)/emulator/figures/gpu/measure_gpu.c.o $(B)/emulator/figures/gpu/held.cu.o $(B)/tests/harness/tiny-model.o $(if $(REAL_CUDA),$(B)/real-interface.o)
format: ## check the layout of the C with clang-format
	@$(call install,$(FOR_CI)); $(skeletons)
	@clang-format --dry-run -Werror $(wildcard src/*/*.[ch] reference/*.c reference/*/*.[ch] cuda/*/*.[ch] cuda/*/*.cu tests/*.[ch] tests/fuzz/*.[ch] tests/harness/*.[ch] tests/harness/*/*.[ch] tests/emulator/*.[ch] figures/*.[ch] figures/*/*.[ch] figures/gpu/*.cu exercises/*/grade.c) $(SKELETONS)/*/*

CHAPTERS := $(sort $(wildcard book/[0-9]*.nw book/labs/[0-9]*.nw))
ONLY ?= $(CHAPTERS)
tangle: ## write src, reference, cuda and exercises from the chapters (ONLY=book/NN-topic.nw: from one); keeps answered labs
	@book/tangle . $(ONLY)
drift: ## fail when a tangled file and its chapter differ, or a file has no chapter
	@$(call install,$(FOR_CI)); rm -rf build/tangled; book/tangle build/tangled $(CHAPTERS)
	@book/drift build/tangled
book: ## weave and typeset build/long-ring.pdf, checked (ONLY=book/NN-topic.nw: a quick draft of one chapter)
	@$(call install,$(FOR_BOOK))
	@book/weave $(if $(filter command,$(origin ONLY)),$(ONLY))
site: ## the book as pages for a browser, with every tangled line: build/site/index.html
	@$(call install,$(FOR_SITE))
	+@$(again) explorer
	@book/site
explorer: $(B)/site/explorer.html ## only the plan explorer of these pages: build/site/explorer.html
$(B)/site/explorer.html: $(B)/built-in.c $(wildcard book/explorer/* src/*/*.[ch])
	@$(call install,$(FOR_EXPLORER))
	@echo "  page $@"; book/explorer/build $< $@
check-site: $(PROGRAM) ## open the pages of build/site in headless Chromium: links, search, weight, width, console; the explorer's figures
	@$(call install,$(FOR_CHECK_SITE))
	@tests/harness/check-site $(B)/site
	@tests/harness/check-explorer $(B)/site/explorer.html $(PROGRAM)

include exercises/Makefile
handout: ## the labs for students: build/long-ring-labs.tar.gz, which builds and grades on its own
	@$(call install,$(FOR_BOOK))
	@book/labs/weave
	@exercises/handout $(B)/long-ring-labs.tar.gz $(B)/labs.pdf
solutions: ## for lecturers: answers to all labs in build/solutions, and their PDF with commentary
	@$(call install,$(FOR_BOOK))
	@SOLUTIONS=1 book/labs/weave
	@exercises/solutions $(B)/solutions
check-labs: ## grade skeletons, solutions and wrong answers: each must lose the right points
	@$(call install,$(FOR_BUILD) $(FOR_LABS))
	@tests/harness/check-labs
check-arm: ## build for aarch64, and run suites and the labs' solutions there, under qemu
	@$(call install,$(FOR_BUILD) $(FOR_LABS) $(FOR_ARM))
	@tests/harness/check-arm

model: ## fetch SmolLM2-135M-Instruct (93 MB) into the user's cache, and verify its checksum
	@# Never overwrite a file that the user names.
	@$(if $(filter file,$(origin MODEL)),tests/harness/fetch-model $(MODEL),test -r $(MODEL) || { echo "no model at $(MODEL)" >&2; exit 1; })
door: ## compile and run the ring in one file, reference/door.c (RANKS=4 TOKENS=96)
	@mkdir -p $(B); $(CC) -O2 -pthread -o $(B)/door reference/door.c -lm && $(B)/door $(or $(RANKS),4) $(or $(TOKENS),96)
demo: ## install, build, fetch the model, and hold a conversation over four ranks
	@$(call install,$(FOR_BUILD))
	+@$(again) all model
	$(DEMO)
PUBLIC    = $(filter-out src/app/% src/measure/% reference/attend/rows.h reference/attend/few.h %_own.h,$(wildcard src/*/*.h reference/*/*.h))
install: all ## install binary, library, headers, longring.pc, manual and completion under DESTDIR and PREFIX
	install -Dm755 $(PROGRAM) -t $(DESTDIR)$(PREFIX)/bin
	install -Dm644 $(LIBRARY) -t $(DESTDIR)$(PREFIX)/lib
	for h in $(PUBLIC); do install -Dm644 $$h $(DESTDIR)$(PREFIX)/include/longring/$${h#src/}; done
	printf '%s\n' '/* All of the library, for C and for C++. */' '#ifdef __cplusplus' 'extern "C" {' '#endif' \
	  $(patsubst %,'#include "%"',$(PUBLIC:src/%=%)) '#ifdef __cplusplus' '}' '#endif' > $(DESTDIR)$(PREFIX)/include/longring/longring.h
	@mkdir -p $(addprefix $(DESTDIR)$(PREFIX)/,lib/pkgconfig share/man/man1)
	printf '%s\n' 'prefix=$(PREFIX)' 'Name: longring' 'Description: context-parallel attention' 'Version: $(VERSION)' \
	  'Cflags: -I$${prefix}/include/longring -fopenmp-simd $(mpi:-DCP_HAVE_MPI%=-DCP_HAVE_MPI)' 'Libs: -L$${prefix}/lib -llongring $(libraries) -fopenmp' > $(DESTDIR)$(PREFIX)/lib/pkgconfig/longring.pc
	tests/harness/manual $(PROGRAM) $(VERSION) > $(DESTDIR)$(PREFIX)/share/man/man1/longring.1
	install -Dm644 src/app/completion.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/longring
clean: ## remove everything built
	rm -rf build
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile exercises/Makefile
force:
.PHONY: door held kills fuzz all check chapters check-gpu gpu first-gpu first-gpu-pack count-gpu suites bench rivals rivals-gpu writers measure paper fit sanitize sanitized soak warnings objects skeletons packages gpu-programs format tangle drift book site explorer check-site handout solutions check-labs check-arm model demo install mutants clean help force
