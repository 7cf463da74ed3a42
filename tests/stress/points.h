/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before every file of native/ that the stress programs are made of (-include): each atomic access of the product is
 * what it was, with its own order, but a point comes before it where the thread may be held up, or its daemon may die.
 */
#ifndef POINTS_H
#define POINTS_H

#include <stdatomic.h>

void stress_point(void);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_or_explicit
#undef atomic_fetch_and_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit
#undef atomic_thread_fence

#ifdef __clang__ /* its __atomic builtins take nothing that is _Atomic */
#define __atomic_load_n __c11_atomic_load
#define __atomic_store_n __c11_atomic_store
#define __atomic_exchange_n __c11_atomic_exchange
#define __atomic_fetch_add __c11_atomic_fetch_add
#define __atomic_fetch_sub __c11_atomic_fetch_sub
#define __atomic_fetch_or __c11_atomic_fetch_or
#define __atomic_fetch_and __c11_atomic_fetch_and
#define __atomic_compare_exchange_n(P, E, V, WEAK, S, F) __c11_atomic_compare_exchange_strong(P, E, V, S, F)
#endif

#define atomic_load_explicit(P, O) (stress_point(), __atomic_load_n(P, O))
#define atomic_store_explicit(P, V, O) (stress_point(), __atomic_store_n(P, V, O))
#define atomic_exchange_explicit(P, V, O) (stress_point(), __atomic_exchange_n(P, V, O))
#define atomic_fetch_add_explicit(P, V, O) (stress_point(), __atomic_fetch_add(P, V, O))
#define atomic_fetch_sub_explicit(P, V, O) (stress_point(), __atomic_fetch_sub(P, V, O))
#define atomic_fetch_or_explicit(P, V, O) (stress_point(), __atomic_fetch_or(P, V, O))
#define atomic_fetch_and_explicit(P, V, O) (stress_point(), __atomic_fetch_and(P, V, O))
#define atomic_compare_exchange_strong_explicit(P, E, V, S, F) (stress_point(), __atomic_compare_exchange_n(P, E, V, 0, S, F))
#define atomic_compare_exchange_weak_explicit(P, E, V, S, F) (stress_point(), __atomic_compare_exchange_n(P, E, V, 1, S, F))
#define atomic_thread_fence(O) (stress_point(), __atomic_thread_fence(O))

#endif
