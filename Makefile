SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
ONLY     := $(sort $(wildcard book/[0-9]*.nw))
TANGLE    = notangle -filter 'awk -f book/chunk-comments.awk'
build/: ; @mkdir -p $@
tangle: | build/
	@for nw in $(ONLY); do \
	  noroots $$nw | sed -n 's/^<<\[\[\(.*\/.*\)\]\]>>$$/\1/p' | while read -r f; do \
	    mkdir -p $$(dirname $$f) && new=build/.new.$$$$ && \
	    { echo "/* Tangled from $$nw; edit the chapter. */"; $(TANGLE) -R"[[$$f]]" $$nw; } > $$new && \
	    { cmp -s $$new $$f || cp $$new $$f; rm -f $$new; } || exit 1; \
	  done || exit 1; \
	done
.PHONY: tangle
