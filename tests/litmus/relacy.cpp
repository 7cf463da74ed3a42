/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs litmus tests under Relacy (Debian: relacy-dev), a checker of C++ programs that others wrote. Standard input has one test a line:
 * threads, then accesses "thread op location value value order order register", then "?" and the outcome "register value ...".
 * Prints for each line 1 where the outcome was seen in a full search, else 0.
 */
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <relacy/relacy.hpp>

struct step {
    unsigned thread;
    std::string op;
    int location, first, second, order, failure, result;
};

static std::vector<step> program;
static std::vector<std::pair<int, int>> outcome;
static bool seen;

static rl::memory_order order_of(int n)
{
    static const rl::memory_order orders[] = {rl::mo_relaxed, rl::mo_acquire, rl::mo_release, rl::mo_acq_rel, rl::mo_seq_cst};
    return orders[n];
}

template <int THREADS> struct suite : rl::test_suite<suite<THREADS>, THREADS> {
    rl::atomic<int> word[8];
    int result[16];

    void before()
    {
        for (auto &w : word)
            w(RL_INFO).store(0, rl::mo_relaxed);
        for (int &r : result)
            r = -1;
    }

    void thread(unsigned index)
    {
        for (const step &a : program) {
            int expected = a.first;

            if (a.thread != index)
                continue;
            if (a.op == "thread_fence")
                rl::atomic_thread_fence(order_of(a.order), RL_INFO);
            else if (a.op == "store")
                word[a.location](RL_INFO).store(a.second, order_of(a.order));
            else if (a.op == "load")
                result[a.result] = word[a.location](RL_INFO).load(order_of(a.order));
            else if (a.op == "exchange")
                result[a.result] = word[a.location](RL_INFO).exchange(a.second, order_of(a.order));
            else
                result[a.result] = word[a.location](RL_INFO).compare_exchange_strong(expected, a.second, order_of(a.order), order_of(a.failure));
        }
    }

    void after()
    {
        for (const auto &wanted : outcome)
            if (result[wanted.first] != wanted.second)
                return;
        seen = true;
    }
};

template <int THREADS> static void search()
{
    rl::test_params parameters;
    std::ostringstream quiet;

    parameters.search_type = rl::fair_full_search_scheduler_type;
    parameters.progress_stream = &quiet;
    parameters.output_stream = &quiet;
    rl::simulate<suite<THREADS>>(parameters);
}

int main()
{
    std::string line, first;

    while (std::getline(std::cin, line)) {
        std::istringstream in(line);
        int threads, wanted, value;

        program.clear();
        outcome.clear();
        seen = false;
        in >> threads;
        while (in >> first && first != "?") {
            step a;

            a.thread = static_cast<unsigned>(std::stoi(first));
            in >> a.op >> a.location >> a.first >> a.second >> a.order >> a.failure >> a.result;
            program.push_back(a);
        }
        while (in >> wanted >> value)
            outcome.emplace_back(wanted, value);
        if (threads == 2)
            search<2>();
        else if (threads == 3)
            search<3>();
        else
            search<4>();
        std::cout << seen << std::endl;
    }
    return 0;
}
