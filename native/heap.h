/* SPDX-License-Identifier: Apache-2.0 */
/* The process's heap, kept small: the C library's own ways of keeping what was freed are made for other programs. */
#ifndef HEAP_H
#define HEAP_H

/* cffi:begin */
#define HFD_HEAP_KEEP 2097152 /* bytes a heap may keep of what was freed: the rows of most rounds, which then cost nothing new */
#define HFD_HEAPS 2           /* the interpreter's, and one for all loops and the transport's thread */

/* Before any thread is started. Returns 0, or -ENOTSUP where the C library has no such settings. */
int hfd_heap_bound(void);
/* cffi:end */

#endif
