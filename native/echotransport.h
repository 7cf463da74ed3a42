/* SPDX-License-Identifier: Apache-2.0 */
/* A transport to nobody: each round is answered at once, or after a delay, with ids that follow from its rows (echo.h). */
#ifndef ECHOTRANSPORT_H
#define ECHOTRANSPORT_H

#include "transport.h"

/* cffi:begin */
/* max_bytes: the largest message that it answers with. Returns 0 or -errno. */
int hfd_echo_open(uint64_t delay_ns, uint64_t max_bytes, uint32_t vocab, struct hfd_transport **ret_transport);
/* Frees a transport that no loop took. */
void hfd_echo_discard(struct hfd_transport *transport);
/* cffi:end */

#endif
