/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One session, word by word: engine thread, stream, daemon, watchdog. The daemon may stall or die anywhere, the session may be lost at any moment, the counter wraps. Which C function a step stands for: README.md.
 *
 *   -DCTX    context-only rounds;   -DFAIL   a driver call fails at any step of one submit
 *   -DSLEEP  daemon and watchdog sleep where there is nothing to do, and must be woken; without it they look whenever there is something
 *   -DCLOCK  time: a look of the watchdog is its unit, the deadline D looks. Without it a deadline may be past at any moment
 *   -DQN=5   a longer queue of the stream: a whole round waits in it
 *   -DM_...  a rule broken: README.md
 *
 * Every load, store and swap of a word that another side writes is a step of its own, sequentially consistent (docs/ORDERING.md argues the rest). Rounds are those after BASE, counted modulo WRAP.
 */
#ifdef M_S3
#define S 3                     /* not a power of two */
#else
#define S 2
#endif
#ifndef R
#define R 3                     /* rounds the engine may submit */
#endif
#ifndef QN
#define QN 2                    /* operations in the stream's queue: the engine thread blocks in the middle of a submit */
#endif
#define WRAP 16
#define BASE 14                 /* 15, 0, 1, ... */
#define D 1
#define TORN 255
#define NONE 254
#define OPEN 0                  /* enum hf_verdict; FAILED stands for all of the daemon's own but OK, EXPIRED for LOST too */
#define OK 1
#define EXPIRED 2
#define FAILED 3
#define ROWS 5                  /* stream operations */
#define GATHERED 1
#define WAIT 2
#define REPLY 3
#define CONSUMED 4
#define slot(t) ((t) % S)
#define past(a,b) (((a) + WRAP - (b)) % WRAP)           /* hf_past, where a is not behind b */
#define reached(a,b) (past(a,b) < WRAP/2)               /* hf_past(a, b) >= 0 */
#define next(t) (((t)+1) % WRAP)

byte submitted = BASE, gathered = BASE, consumed = BASE, released = BASE, retired = BASE, attempted = BASE;
byte vr[S] = NONE, vs[S];       /* verdict word of a slot */
byte header[S] = NONE, rows[S] = NONE, reply[S] = NONE; /* ghost content: the round it belongs to */
bit isctx[S];
bit bracket, lost, lostw, poisoned, closing, closed, ended, stuck, dead, gdone;
bit waiting, dsleeps;           /* the daemon says that it sleeps; it sleeps in the futex */
bit at_rest, wsleeps, bell;     /* the same of the watchdog, in its poll without a tick */
byte dseen, n;                  /* what the daemon went to sleep at; ghost: rounds so far */
chan q = [QN] of { byte, byte, bit };

inline release(t) {             /* hf_release */
#ifdef M_PLAINREL
  assert(reached(t,released)); released = t
#else
  atomic { if :: past(t,released) > 0 && reached(t,released) -> assert(reached(gathered,t)); released = t       /* 6 */
              :: else -> skip fi }
#endif
}
inline swap(t,to) {             /* hf_decide */
  atomic { if :: vr[slot(t)] == t && vs[slot(t)] == OPEN -> vs[slot(t)] = to; won = 1
              :: else -> won = 0 fi }
}

/* ---- engine thread ---- */

inline call(op) {
  if
  :: !broken -> q!op,t,c
#ifdef FAIL
  :: !broken && !failed -> atomic { failed = 1; broken = 1 }
#endif
  :: broken -> skip
  fi
}
inline wake() {                 /* hfe_watchdog_wake */
#ifdef SLEEP
#ifdef M_RUNG                   /* whoever finds the bell about to be rung does not ring it himself */
  if :: at_rest -> at_rest = 0; bell = 1 :: else -> skip fi
#else
  if :: at_rest -> bell = 1 :: else -> skip fi
#endif
#else
  skip
#endif
}

active proctype Engine() { byte t = next(BASE), settled = BASE; bit c, failed, broken;
  do
  :: n < R && past(t,retired) <= S && past(t,consumed) <= S ->                          /* room, as seen before */
       bracket = 1;
       atomic { do :: past(consumed,settled) > 0 && past(submitted,settled) > 0 && vs[slot(next(settled))] != OPEN ->
                        settled = next(settled); assert(vr[slot(settled)] == settled);  /* booked: 2 */
                        assert(vs[slot(settled)] == EXPIRED || reply[slot(settled)] == settled)
                   :: else -> break od }
       if :: lost -> break :: past(t,settled) > S && !lost -> goto over :: else -> skip fi;
       atomic {
         if :: c = 0
#ifdef CTX
            :: c = 1
#endif
         fi;
         isctx[slot(t)] = c; header[slot(t)] = t; vr[slot(t)] = t; vs[slot(t)] = OPEN };
       attempted = t;
       wake();
       atomic {                 /* left only where the queue is full; the stream may be slow to take them */
         call(ROWS); call(GATHERED);
         if :: !c -> call(WAIT); call(REPLY) :: else -> skip fi;
         call(CONSUMED)
       }
       if
       :: broken ->                                                                     /* fail_step */
            atomic { poisoned = 1; lost = 1; lostw = 1 }
            wake();
            if :: q!CONSUMED,t,c :: stuck = 1 fi;
            break
       :: else -> skip
       fi;
#ifndef SLEEP
       atomic { submitted = t; t = next(t); n++ }
#else
#ifdef M_BELL
       if :: waiting -> submitted = t; dsleeps = 0 :: else -> submitted = t fi;
#else
       submitted = t;
       if :: waiting -> dsleeps = 0 :: else -> skip fi;
#endif
       atomic { assert(!(dsleeps && dseen != submitted));                               /* nobody sleeps over a round */
                assert(!(wsleeps && !bell && consumed != attempted)); t = next(t); n++ }
#endif
over:  bracket = 0
  :: n == R || lost -> break
  od;
  bracket = 0;
  closing = 1; wake();
  if :: stuck -> if :: q!CONSUMED,t,c; stuck = 0 :: skip fi :: else -> skip fi;
  closed = 1 }

/* ---- stream ---- */

#define idle() op = 0; t = 0; rep = 0; c = 0

active proctype Gpu() { byte op, t, rep; bit c;
  do
  :: atomic { q?op,t,c ->
       if :: op == ROWS -> rows[slot(t)] = TORN
          :: op == GATHERED -> gathered = t; idle()
          :: op == WAIT -> reached(released,t); idle()
          :: op == REPLY -> rep = reply[slot(t)]
          :: op == CONSUMED -> assert(reached(t,consumed)); consumed = t; idle()
       fi }
     if
     :: op == ROWS -> atomic { rows[slot(t)] = t; idle() }
     :: op == REPLY ->
          atomic { assert(vr[slot(t)] == t && vs[slot(t)] != OPEN);
                   assert(vs[slot(t)] != OK || (rep == t && reply[slot(t)] == t)); idle() }     /* 3 */
     :: else -> skip
     fi
  :: closed && empty(q) -> break
  od;
  gdone = 1 }

/* ---- daemon: the round loop ---- */

#ifdef SLEEP
#define DIES false -> skip
#else
#define DIES true -> goto gone
#endif

#ifndef CLOCK
active proctype Daemon() { byte t = next(BASE), to; bit won;
    do
    :: lostw -> break                                                                   /* hfd_loop_tend */
    :: DIES
    :: closed && past(submitted,t) >= WRAP/2 -> break
#ifdef SLEEP
    :: !reached(submitted,t) ->                                                         /* rest, hf_doorbell_wait */
         dseen = submitted;
         waiting = 1;
         if :: submitted == dseen -> atomic { if :: submitted == dseen -> dsleeps = 1 :: else -> skip fi }
            :: else -> skip fi;
         atomic { (!dsleeps || lostw || closed) -> dsleeps = 0; dseen = 0 }             /* woken; or the next beat, with nothing to do */
         waiting = 0
#endif
    :: reached(submitted,t) ->
         assert(header[slot(t)] == t);                                                  /* hfd_wire_take */
         if :: atomic { reached(gathered,t) -> assert(rows[slot(t)] == t) }             /* 4 */
            :: lostw -> break fi;
         if :: (lostw) -> break :: DIES :: atomic { !lostw -> if :: to = OK :: to = FAILED fi } fi;
#ifndef M_LATEREPLY
         reply[slot(t)] = TORN;
         if :: DIES :: reply[slot(t)] = t fi;
#endif
#ifdef M_NOCAS
         won = (vr[slot(t)] == t && vs[slot(t)] == OPEN);
         if :: won -> atomic { assert(vs[slot(t)] == OPEN); vs[slot(t)] = to } :: else -> skip fi;
#else
         if :: DIES :: swap(t,to) fi;
#endif
#ifdef M_LATEREPLY
         if :: won -> reply[slot(t)] = TORN; reply[slot(t)] = t :: else -> skip fi;
#endif
         assert(vr[slot(t)] == t && vs[slot(t)] != OPEN);                               /* else: hfd_loop_fail */
         if :: DIES :: release(t) fi;
         if :: DIES :: skip fi;
         atomic { assert(rows[slot(t)] == t && header[slot(t)] == t);                   /* 4: the transport has let go only now */
                  assert(retired == (t + WRAP - 1) % WRAP); retired = t; t = next(t); to = 0; won = 0 }
    od;
gone:
    atomic { dead = 1; dsleeps = 0 } }

active proctype Loser() {       /* hfe_give_up, for whatever reason */
  if :: skip :: skip -> (dead || lost || closing) fi;           /* at the latest when it is dead: POLLHUP */
  atomic { lost = 1; lostw = 1 }
  wake() }

#endif

/* ---- watchdog ---- */

#ifdef CLOCK
byte seen[S], age[S];           /* looks since it was noted; ghost: looks that it has waited */
byte oldest = NONE;
inline tick() {                 /* see: each slot has its own clock */
  atomic {
#ifdef M_ONECLOCK
    if :: oldest != next(w) -> oldest = next(w); seen[0] = 0 :: else -> seen[0]++ fi;
#endif
    i = 0;
    do :: i < S && past(g,w) > i && reached(g,w) -> t = (w+i+1) % WRAP;
            age[slot(t)]++; assert(age[slot(t)] <= D+2);                                /* 1: deadline and two ticks */
            i++
       :: else -> break od;
    i = 0; t = 0 }
}
#ifdef M_ONECLOCK
#define due(t) (next(w) == t && seen[0] > D)
#else
#define due(t) (age[slot(t)] > D+1)                     /* noted at its first look */
#endif
#define undue(t) (!due(t))
#else
#define due(t) true
#define undue(t) true
#endif

inline look(must) {
  w = released;
  g = gathered;
#ifdef CLOCK
  tick();
#endif
  top = w; i = 0; order = 1;
  do
  :: i < S && reached(g,(w+i+1) % WRAP) ->
#ifdef M_TWICE
       w = released;
#endif
#ifdef M_NOCAS
       t = (w+i+1) % WRAP; won = (vr[slot(t)] == t && vs[slot(t)] == OPEN);
       atomic { if :: won -> assert(vs[slot(t)] == OPEN); vs[slot(t)] = EXPIRED :: else -> skip fi; if :: order -> top = t :: else -> skip fi; i++; t = 0; won = 0 }
#else
       atomic { t = (w+i+1) % WRAP; won = 0;
                if :: vr[slot(t)] == t && vs[slot(t)] == OPEN ->
                        if :: (must || due(t)) -> vs[slot(t)] = EXPIRED; won = 1
                           :: (!must && undue(t)) -> order = 0 fi
                   :: else -> skip fi;
                if :: order -> top = t :: else -> skip fi; i++; t = 0 };
       won = 0
#endif
  :: else -> break
  od;
  if :: top != w -> release(top) :: else -> skip fi;
#ifdef CLOCK
  atomic { i = 0; do :: i < S -> if :: reached(released,vr[i]) || vr[i] == NONE -> age[i] = 0 :: else -> skip fi; i++ :: else -> break od; i = 0 }
#endif
  atomic { w = 0; g = 0; top = 0; i = 0; order = 0 }
}
#define in_flight (consumed != attempted || gathered != released)

active proctype Watchdog() { byte t, w, g, top, i; bit won, order;
  do
  :: gathered != released -> look(lost)
  :: lost || closing ->                                                                 /* finished: ending, bracket, consumed */
#ifdef M_STOPORDER
       if :: consumed == attempted -> if :: !bracket -> break :: else -> skip fi :: else -> skip fi
#else
#ifndef M_STOPEARLY
       if :: !bracket ->
#endif
#ifdef M_HALFSTOP
       if :: consumed == submitted -> if :: lost || gathered == released -> break :: else -> skip fi
#else
       if :: consumed == attempted -> if :: lost || gathered == released -> break :: else -> skip fi
#endif
          :: else -> skip fi
#ifndef M_STOPEARLY
          :: else -> skip fi
#endif
#endif
#ifdef SLEEP
  :: !in_flight && !lost && !closing ->                                                 /* rest */
#ifdef M_REST
       if :: !in_flight && !lost && !closing -> at_rest = 1; wsleeps = 1 :: else -> skip fi;
#else
       at_rest = 1;
       if :: !in_flight -> if :: !lost && !closing -> wsleeps = 1 :: else -> at_rest = 0 fi
          :: else -> at_rest = 0 fi;
#endif
       atomic { (!wsleeps || bell) -> wsleeps = 0; bell = 0 }
       at_rest = 0
#endif
  :: gdone && stuck && consumed != attempted -> goto kept                               /* StreamStuck: it stays for ever */
  od;
#ifndef M_NOLASTLOOK
  if :: gathered != released -> look(lost) :: else -> skip fi;
#endif
  assert(gathered == released);
kept:
  ended = 1 }
