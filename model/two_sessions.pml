/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sessions, one stream: the first is lost at any moment, the second is on its region (ADOPT) or on another (NEWREG). Which C function a step stands for: README.md.
 *
 *   -DADOPT    the first daemon may die at any moment, also between two words of one action, or be stopped and let go later; once it is gone, session 2 adopts region 0
 *   -DNEWREG   the first daemon is only stopped and may go on at any later moment; session 2 gets region 1. With ADOPT: either
 *   -DFAIL     a driver call fails at any step of one submit, and perhaps the fence behind it too
 *   -DREOFFER  region 0 is first offered to a daemon that the engine gives up waiting for
 *   -DRING     rows lie in a ring of RC cells, one or two a round, contiguous, freed in order;   -DCTX  context-only rounds, and steps of two rounds
 *   -DNODHELP  a daemon that lost the swap leaves `released` alone (an earlier design, sound too)
 *   -DM_...    a rule broken: README.md
 *
 * The stream's queue is short (QN), so the engine thread can block in the middle of a submit. Memory is sequentially consistent. Steps that nobody may legally observe half-done are one step here and several in
 * handoff.pml; a stale reader or writer is always kept apart from what it read.
 */
#define S 2
#ifndef R1
#define R1 2                    /* rounds the engine may submit in session 1 */
#endif
#ifndef R2
#define R2 2                    /* and in session 2 */
#endif
#define QN 2
#define RC 3
#define TORN 255
#define JUNK 254                /* ids of a watchdog that writes replies */
#define OPEN 0                  /* enum hf_verdict. OK stands for all of the daemon's own, whose order is the same and whose promise is less; EXPIRED for LOST too */
#define OK 1
#define EXPIRED 2
#define FIRST 1                 /* sessions; PHANTOM: of a daemon whose offer was given up */
#define SECOND 2
#define PHANTOM 3
#define ROUND_PARK 1            /* stream: rows, gathered, wait */
#define ROUND_END 6             /* reply, consumed */
#define HALF_ROWS 2             /* rows; then a call failed */
#define HALF_GATHERED 3         /* rows, gathered; then a call failed */
#define HALF_REPLY 4            /* reply; then a call failed */
#define FENCE 5                 /* consumed */
#define val(s,t) ((s)*16+(t))
#define ix(r,t) ((r)*S+((t)%S))

byte sub[2], gat[2], con[2], rel[2], ret[2];    /* words of the two regions */
bit lostw[2];                   /* the region's lost word */
byte vr[4], vs[4];              /* verdict word of a slot: round, verdict */
bit isctx[4];                   /* CPU header */
byte reply[4], rows[6];         /* ghost content: whose they are; TORN: half of it is written */
byte rst[4], rln[4];            /* a slot's piece of the ring */
byte att[3];                    /* e->attempted of session 1, 2 */
bit lost[3], bracket[3], ended[3];  /* e->lost, e->bracket, w->ended */
bit poisoned;                   /* of region 0 */
byte owner[2] = {FIRST, 0};     /* ghost: the session whose region it is */
byte dec1, dec2;                /* ghost: bit t: round t of session 1, 2 has a verdict */
bit dead, eof, xgone;           /* first daemon: no more actions of it, socket hung up; first daemon: looks gone and is not; phantom gone */
bit ready, refused;             /* second daemon: READY; REFUSED */
bit fin, closed, kdone, stuck, gdone;   /* engine closes; has closed; keeper is through; no fence could be enqueued; ghost: the stream is idle for ever */
byte cur = FIRST, sreg2, base2;
chan q = [QN] of { byte, bit, byte, byte, bit };        /* what, region, session, round, context-only */

#ifdef NODHELP
#define DHELP false
#else
#define DHELP true
#endif
#ifdef M_WDCHECK                /* a watchdog takes no new round once the region is another session's; an action in flight goes on */
#define wdmine (owner[r] == s)
#else
#define wdmine true
#endif
#ifdef M_NORETIRE
#define retfree(r,t) true
#else
#define retfree(r,t) (ret[r] + S >= (t))
#endif
#ifdef M_NOCONSUME
#define confree(r,t) true
#else
#define confree(r,t) (con[r] + S >= (t))
#endif
#ifdef M_NOSETTLE
#define setfree(t) true
#else
#define setfree(t) (settled + S >= (t))
#endif

inline advance(s,r,t) {         /* hf_release; inside atomic */
#ifdef M_PLAINREL
  assert(owner[r] == s); assert(t >= rel[r]); assert(gat[r] >= t); rel[r] = t
#else
  if :: (t > rel[r]) -> assert(owner[r] == s);          /* 5 */
                        assert(gat[r] >= t);            /* 6 */
                        rel[r] = t
     :: else -> skip fi
#endif
}
inline decide(s,r,t,to) {       /* inside atomic */
  vs[ix(r,t)] = to; assert(owner[r] == s);                                              /* 5 */
  if :: s == FIRST -> assert(!((dec1 >> t) & 1)); dec1 = dec1 | (1 << t)
     :: else -> assert(!((dec2 >> t) & 1)); dec2 = dec2 | (1 << t) fi                   /* 2 */
}
inline swap(s,r,t,to,won) {     /* hf_decide; inside atomic */
  if :: (vr[ix(r,t)] == t && vs[ix(r,t)] == OPEN) -> won = true; decide(s,r,t,to)
     :: else -> won = false fi
}
inline intact(s,r,t) {          /* inside atomic: the rows are round t's */
  j = 0; do :: j < rln[ix(r,t)] -> assert(rows[r*RC + rst[ix(r,t)] + j] == val(s,t)); j++ :: else -> break od; j = 0
}
inline setrows(r,t,v) {
  j = 0; do :: j < rln[ix(r,t)] -> rows[r*RC + rst[ix(r,t)] + j] = v; j++ :: else -> break od; j = 0
}

/* ---- engine thread ---- */

inline settle(s,r) {            /* inside atomic */
  do :: con[r] > settled && sub[r] > settled && vs[ix(r,settled+1)] != OPEN ->
          i = ix(r,settled+1); settled++;
          assert(vr[i] == settled);                                                     /* each round is booked */
          assert(vs[i] == EXPIRED || reply[i] == val(s,settled)); vs[i] = OK; i = 0     /* ghost: from here on it matters only that it is decided */
     :: else -> break od
}
inline place(r,t) {             /* inside atomic: fit, and where (p, n) */
  fit = 0;
  if :: (retfree(r,t) && confree(r,t) && setfree(t)) ->
          fit = 1;
#ifdef RING
          if :: n = 1 :: n = 2 fi;
#ifdef M_RINGCON
          i = con[r]+1;
#else
          i = ret[r]+1;
#endif
          if :: i >= t -> p = 0                                         /* empty: from the start again */
             :: else -> p = rst[ix(r,t-1)] + rln[ix(r,t-1)]; i = rst[ix(r,i)];
                if :: p > i -> if :: p+n <= RC -> skip :: else -> if :: n <= i -> p = 0 :: else -> fit = 0 fi fi
                   :: else -> if :: p+n <= i -> skip :: else -> fit = 0 fi fi
          fi; i = 0
#else
          p = t % S
#endif
     :: else -> skip fi
}
inline giveup(s,r) {
  atomic { lost[s] = 1; lostw[r] = 1 }
}

#define region_now (cur == FIRST -> 0 : sreg2)
#define round_now (cur == last -> t : base2+1)

active proctype Engine() { byte s, r, t = 1, last = FIRST, p, n = 1, i, settled, n1, n2, half; bit c, fit, more, halfr;
  do
  :: atomic { (!lost[cur] && ((n1 < R1 && cur == FIRST) || (n2 < R2 && cur == SECOND)) && retfree(region_now,round_now) && confree(region_now,round_now)) ->
       s = cur; r = (s == SECOND -> sreg2 : 0);
       if :: s != last -> last = s; t = base2+1; settled = base2
          :: else -> skip fi;
#ifndef M_LOSTFIRST
       bracket[s] = 1
#endif
     }
#ifdef M_LOSTFIRST
     atomic { settle(s,r); if :: lost[s] -> goto over :: else -> skip fi }
     bracket[s] = 1;
     atomic { place(r,t); if :: fit -> skip :: else -> goto over fi }
#else
     atomic { settle(s,r); if :: lost[s] -> goto over :: else -> skip fi; place(r,t); if :: fit -> skip :: else -> goto over fi }
#endif
     atomic {                   /* left only where the queue is full; whoever is slow to look sees the steps apart */
       i = 0;
next:  if :: c = 0
#ifdef CTX
          :: c = 1
#endif
       fi;
       i = ix(r,t); rst[i] = p; rln[i] = n; isctx[i] = c; vr[i] = t; vs[i] = OPEN; att[s] = t; i = 0;
#ifdef FAIL
       if
       :: !half ->
            half = s; halfr = r;
            if
            :: skip
            :: q!HALF_ROWS,r,s,t,c
            :: q!HALF_GATHERED,r,s,t,c
            :: q!ROUND_PARK,r,s,t,c
            :: !c -> q!ROUND_PARK,r,s,t,c; q!HALF_REPLY,r,s,t,c
            fi
       :: skip -> q!ROUND_PARK,r,s,t,c; q!ROUND_END,r,s,t,c
       fi;
       if
       :: half == s && att[s] == t ->                                   /* fail_step */
#ifndef M_NOPOISON
            if :: r == 0 -> poisoned = 1 :: else -> skip fi;
#endif
#ifdef M_HALFGOON                                                       /* the session goes on behind it */
            half = 3; t++; if :: s == FIRST -> n1++ :: else -> n2++ fi;
#else
            lost[s] = 1; lostw[r] = 1;
            if :: q!FENCE,r,s,t,c :: stuck = 1 fi;                      /* else hfe_close tries once more, below */
#endif
            goto over
       :: else -> skip
       fi;
#else
       q!ROUND_PARK,r,s,t,c;
       q!ROUND_END,r,s,t,c;
#endif
       sub[r] = t; t++;
       if :: s == FIRST -> n1++ :: else -> n2++ fi;
#ifdef CTX
       if :: (!more && ((s == FIRST && n1 < R1) || (s == SECOND && n2 < R2))) -> place(r,t); more = 1; if :: fit -> goto next :: true -> skip fi
          :: else -> skip fi;
#endif
over:  bracket[s] = 0; s = 0; r = 0; c = 0; p = 0; n = 1; more = 0; fit = 0; i = 0 }
  :: atomic { cur == FIRST && (n1 >= R1 || lost[FIRST]) && kdone -> break }
  :: atomic { cur == SECOND && (n2 >= R2 || lost[SECOND]) -> break }
  :: atomic { cur == FIRST && n1 >= R1 && !lost[FIRST] -> break }                       /* session 1 goes well, the engine ends */
  od;
  atomic {
    fin = 1;
#ifdef FAIL
    if :: stuck -> if :: q!FENCE,halfr,half,att[half],0; stuck = 0 :: skip fi
       :: else -> skip fi;
#endif
    r = (last == SECOND -> sreg2 : 0); settle(last,r); r = 0;                           /* Session.end */
    closed = 1 } }

/* ---- stream ---- */

#define idle() k = 0; rep = 0; r = 0; s = 0; t = 0; c = 0

active proctype Gpu() { byte k, s, t, rep, j; bit r, c;
  do
  :: atomic { q?k,r,s,t,c; assert(owner[r] == s);
       if :: (k == ROUND_PARK || k == HALF_ROWS || k == HALF_GATHERED) -> setrows(r,t,TORN)
          :: ((k == ROUND_END || k == HALF_REPLY) && !c) -> rep = reply[ix(r,t)]
          :: else -> assert(t >= con[r]); con[r] = t; idle() fi }
     if
     :: (k == HALF_ROWS) -> atomic { setrows(r,t,val(s,t)); idle() }
     :: (k == HALF_GATHERED || (k == ROUND_PARK && c)) -> atomic { setrows(r,t,val(s,t)); assert(gat[r] <= t); gat[r] = t; idle() }
     :: (k == ROUND_PARK && !c) -> atomic { setrows(r,t,val(s,t)); assert(gat[r] <= t); gat[r] = t }
          atomic { rel[r] >= t -> idle() }
     :: (k == ROUND_END || k == HALF_REPLY) ->
          atomic { assert(vr[ix(r,t)] == t); assert(vs[ix(r,t)] != OPEN);
                   assert(vs[ix(r,t)] != OK || (rep == val(s,t) && reply[ix(r,t)] == val(s,t)));                  /* 3 */
                   if :: k == ROUND_END -> assert(owner[r] == s); assert(t >= con[r]); con[r] = t :: else -> skip fi; idle() }
     :: else -> skip
     fi
  :: atomic { closed && empty(q) -> break }
  od;
  gdone = 1 }

/* ---- daemon: a round loop ---- */

proctype Daemon(byte s; bit r; byte t) { byte j; bit won, c;                        /* t: the base round */
  {
    if :: s != FIRST ->                                                                 /* take_base */
#ifndef M_NOCHECK
          atomic { if :: (lostw[r] || sub[r] != t || con[r] != t || gat[r] != t || ret[r] > t || rel[r] > t) -> goto gone :: else -> skip fi }
#endif
          atomic { if :: rel[r] < t -> assert(owner[r] == s); rel[r] = t :: else -> skip fi }
          atomic {
#ifndef M_NORETBASE
          assert(owner[r] == s); assert(t >= ret[r]); ret[r] = t;
#endif
          t++; if :: s == SECOND -> ready = 1 :: else -> skip fi }
       :: else -> t++ fi;
    do
    :: atomic { (sub[r] >= t && gat[r] >= t) -> c = isctx[ix(r,t)]; intact(s,r,t);       /* 4: the first read */
#ifdef M_LATEREPLY
         swap(s,r,t,OK,won) }
       if :: won -> reply[ix(r,t)] = TORN; reply[ix(r,t)] = val(s,t) :: else -> skip fi;
#else
         assert(owner[r] == s); reply[ix(r,t)] = TORN }                                 /* ids under OK; times always */
#ifdef M_NOCAS
       atomic { reply[ix(r,t)] = val(s,t); won = (vr[ix(r,t)] == t && vs[ix(r,t)] == OPEN) };
       atomic { if :: won -> decide(s,r,t,OK) :: else -> skip fi };
#else
       atomic { assert(owner[r] == s); reply[ix(r,t)] = val(s,t); swap(s,r,t,OK,won);
                assert(vr[ix(r,t)] == t && vs[ix(r,t)] != OPEN) };                      /* else: hfd_loop_fail */
#endif
#endif
#if defined(M_RETFIRST) || defined(M_RETEARLY)
       atomic { assert(owner[r] == s); assert(t >= ret[r]); setrows(r,t,0); ret[r] = t };
#endif
       atomic { if :: (won || DHELP) -> advance(s,r,t) :: else -> skip fi };
#ifdef M_RETFIRST
       atomic { t++; won = 0; c = 0 }
#else
       atomic { intact(s,r,t);                                                          /* 4: the transport has let go only now */
                assert(owner[r] == s); assert(t >= ret[r]); setrows(r,t,0); ret[r] = t; t++; won = 0; c = 0 }
#endif
    :: lostw[r] -> break
    :: atomic { closed && sub[r] < t -> break }
    od;
gone:
    skip
  } unless { s == FIRST && dead };
  if :: s == FIRST && lostw[r] -> dead = 1                                              /* let_go: the map first, then the socket */
     :: s == PHANTOM -> xgone = 1
     :: s == SECOND && !ready -> refused = 1
     :: else -> skip fi }

/* ---- watchdog ---- */

inline look(must) {             /* look_at_rounds. must: the session is lost, what is open is decided at once; else by its deadline, which may be now */
  do
  :: i < S && g > w+i ->
#ifdef M_TWICE
       w = rel[r];
#endif
#ifdef M_NOCAS
       won = (vr[ix(r,w+i+1)] == w+i+1 && vs[ix(r,w+i+1)] == OPEN);
       atomic { if :: won -> decide(s,r,(w+i+1),EXPIRED) :: else -> skip fi; if :: order -> top = w+i+1 :: else -> skip fi; i++ };
#else
       atomic { t = w+i+1;
                if :: (vr[ix(r,t)] == t && vs[ix(r,t)] == OPEN) ->
                        if :: swap(s,r,t,EXPIRED,won)
                           :: !must -> order = 0
                        fi
                   :: else -> skip fi;
                if :: order -> top = t :: else -> skip fi; i++; t = 0 };
#endif
#ifdef M_WFB
       if
#ifdef M_WFBCTX
       :: won ->
#else
       :: (won && !isctx[ix(r,w+i)]) ->
#endif
            atomic { assert(owner[r] == s); reply[ix(r,w+i)] = JUNK } :: else -> skip fi;
#endif
       won = 0
  :: else -> break
  od;
  atomic { if :: top != w -> advance(s,r,top) :: else -> skip fi; w = 0; g = 0; top = 0; i = 0; order = 0 }
}

proctype Wd(byte s; bit r) { byte t, w, g, top, i; bit won, order;
  do
#ifdef M_UNGATHERED
  :: atomic { (gat[r] > rel[r] || (lost[s] && att[s] > rel[r])) -> t = rel[r]+1 }
     atomic { swap(s,r,t,EXPIRED,won) };
     atomic { advance(s,r,t); won = 0; t = 0 }
#else
  :: atomic { (gat[r] > rel[r] && wdmine) -> w = rel[r]; g = gat[r]; top = w; order = 1 }
     look(false)
#endif
  /* finished: loss (or the end) first, then the bracket, then consumed */
#ifdef M_STOPORDER
  :: (con[r] == att[s]) -> if :: atomic { (lost[s] || fin) && !bracket[s] -> break } :: else -> skip fi
#else
  :: (lost[s] || fin) ->
#ifndef M_STOPEARLY
       if :: !bracket[s] ->
#endif
#ifdef M_HALFSTOP
       if :: atomic { con[r] == sub[r] && (lost[s] || gat[r] == rel[r]) -> break } :: else -> skip fi
#else
       if :: atomic { con[r] == att[s] && (lost[s] || gat[r] == rel[r]) -> break } :: else -> skip fi
#endif
#ifndef M_STOPEARLY
       :: else -> skip fi
#endif
#endif
#ifdef FAIL
  :: atomic { gdone && stuck && lost[s] && con[r] != att[s] -> goto kept }              /* StreamStuck: the region, its map and this thread stay for ever */
#endif
  od;
#ifndef M_NOLASTLOOK
  if :: atomic { (gat[r] > rel[r] && wdmine) -> w = rel[r]; g = gat[r]; top = w; order = 1 }
        look(lost[s])
     :: else -> skip fi;
#endif
  atomic { assert(owner[r] != s || rel[r] >= gat[r]); ended[s] = 1 };                         /* nothing is left open */
kept:
  skip }

/* ---- what befalls the first daemon ---- */

#ifdef ADOPT
active proctype Killer() {
  if :: dead = 1 :: skip fi }
#endif
#if defined(M_EOF) || defined(M_CLOSEFIRST)
active proctype HalfCloser() {
#ifdef M_EOF
  if :: eof = 1 :: skip fi                                      /* an empty packet, a shutdown, a failed write: it lives */
#else
  if :: lostw[0] -> eof = 1 :: fin -> skip fi                   /* the control plane's descriptor goes before the loop is through */
#endif
}
#endif

/* ---- keeper ---- */

#ifndef M_NOWDJOIN
#define rest_joined ended[FIRST]
#else
#ifdef M_NOBRACKET
#define rest_joined true
#else
#define rest_joined !bracket[FIRST]
#endif
#endif
#if defined(M_NOQUIESCE) || defined(M_NOREST)
#define rest_still true
#else
#define rest_still (con[0] == sub[0] && gat[0] == sub[0])
#endif
#define rest (rest_joined && !poisoned && rest_still)

proctype Keeper() {
  if :: giveup(FIRST,0) :: lost[FIRST] -> skip :: fin -> goto out fi;
  if
#ifdef ADOPT
#ifdef M_NOTDEAD
  :: true ->
#else
#if defined(M_EOF) || defined(M_CLOSEFIRST)
  :: (dead || eof) ->
#else
  :: (dead) ->                                                  /* POLLHUP */
#endif
#endif
       if                                                       /* hfe_region_rest: no session on it, not poisoned, at rest */
       :: atomic { (rest) -> base2 = sub[0]; lostw[0] = 0 }     /* Region.offer */
       :: (ended[FIRST] && !(rest)) -> goto other
       :: (fin || stuck) -> goto out
       fi;
#ifdef REOFFER
       owner[0] = PHANTOM;
       run Daemon(PHANTOM,0,base2);
       lostw[0] = 1;                                            /* Region.withdraw */
#ifndef M_REOFFER
       (xgone);                                                 /* fenced until that connection's peer is gone */
#endif
       lostw[0] = 0;
#endif
#ifdef M_ZERO
       atomic { owner[0] = SECOND; base2 = 0; sub[0] = 0; gat[0] = 0; con[0] = 0; rel[0] = 0; ret[0] = 0; vr[0] = 0; vs[0] = 0; vr[1] = 0; vs[1] = 0; sreg2 = 0; run Daemon(SECOND,0,0) }
#else
#ifdef M_NOZERO
       base2 = 0; owner[0] = SECOND;                                               /* the counter starts again in words that were not zeroed */
#endif
       atomic { owner[0] = SECOND; sreg2 = 0; run Daemon(SECOND,0,base2) }
#endif
       if :: ready -> skip :: (refused || fin) -> goto out fi;
       atomic { att[SECOND] = base2; run Wd(SECOND,0); cur = SECOND }                   /* hfe_open */
#endif
#ifdef NEWREG
  :: true -> goto other
#endif
  :: (fin) -> skip
#ifdef ADOPT
  :: atomic { !dead -> skip }                                   /* its owner is not known to be gone, and there is no room for another region */
#endif
  fi;
  goto out;
other:
#ifdef NEWREG
  atomic { base2 = 0; owner[1] = SECOND; sreg2 = 1; run Daemon(SECOND,1,0) };
  if :: ready -> skip :: (refused || fin) -> goto out fi;
  atomic { run Wd(SECOND,1); cur = SECOND };
#endif
out:
  kdone = 1 }

init { atomic { run Daemon(FIRST,0,0); run Wd(FIRST,0); run Keeper() } }
