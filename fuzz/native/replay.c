/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzzer on the files that are named, without libFuzzer: what was found once stays found. */
#include "cursor.h"

static int run_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    uint8_t *exact;
    size_t bytes;

    if (!file) {
        perror(path);
        return 1;
    }
    fprintf(stderr, "%s\n", path); /* the last one said is the one that failed */
    bytes = fread(data, 1, sizeof(data), file);
    fclose(file);
    exact = malloc(bytes ? bytes : 1); /* a read past the input's end is the fuzzer's own fault, and seen */
    MUST(exact);
    memcpy(exact, data, bytes);
    LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
    return 0;
}

int main(int argc, char **argv)
{
    int failed = 0;

    for (int i = 1; i < argc; i++)
        failed |= run_file(argv[i]);
    return failed;
}
