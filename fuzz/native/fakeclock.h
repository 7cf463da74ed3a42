/* SPDX-License-Identifier: Apache-2.0 */
/* A clock that goes on by a microsecond a look, and by what a poll would have waited: an input runs the same at each time. */
#ifndef FAKECLOCK_H
#define FAKECLOCK_H

#include <stdint.h>

extern uint64_t fake_now_ns;

#endif
