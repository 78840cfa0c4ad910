// A hipRTC that knows gfx942 and aborts on any other target, as some versions do. It prints to
// stdout, which is where its caller's answer goes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program {
  char source[4096], log[256], code[8192];
  size_t code_bytes;
};

int hiprtcVersion(int *major, int *minor) { return *major = 9, *minor = 5, 0; }
const char *hiprtcGetErrorString(int code) { return code == 6 ? "COMPILATION" : "OTHER"; }
int hiprtcCreateProgram(struct program **p, const char *source, const char *name, int n,
                        const char **headers, const char **names) {
  (void)name, (void)headers, (void)names;
  *p = calloc(1, sizeof **p);
  snprintf((*p)->source, sizeof (*p)->source, "%s", source);
  return n;
}
int hiprtcCompileProgram(struct program *p, int count, const char **options) {
  puts("a word that nobody asked for");
  fflush(stdout);
  if (!count || strcmp(options[0], "--offload-arch=gfx942")) {
    fputs("munmap_chunk(): invalid pointer\n", stderr);
    abort();
  }
  const char *bad = strstr(p->source, "oops");
  if (bad) {
    snprintf(p->log, sizeof p->log, "kernel.cu:2:1: error: unknown type name 'oops'");
    return 6;
  }
  if (strstr(p->source, "empty")) return 0;
  // Bytes that a careless transport would spoil: newlines, zeros, 0xFF.
  memcpy(p->code, "\177ELF\n\0\r\n\377", 9);
  p->code_bytes = 9 + sprintf(p->code + 9, "%s|%s", options[count - 1], p->source);
  return 0;
}
int hiprtcGetProgramLogSize(struct program *p, size_t *n) { return *n = strlen(p->log) + 1, 0; }
int hiprtcGetProgramLog(struct program *p, char *out) { return strcpy(out, p->log), 0; }
int hiprtcGetCodeSize(struct program *p, size_t *n) { return *n = p->code_bytes, 0; }
int hiprtcGetCode(struct program *p, char *out) { return memcpy(out, p->code, p->code_bytes), 0; }
int hiprtcDestroyProgram(struct program **p) { return free(*p), 0; }
