// topk-nth.cc COUNT SHARE ROUNDS - std::nth_element as a top-k: the seconds of each round, one to a
// line. |x| is copied, nth_element finds the k-th, and a pass collects the indices that reach it,
// which is faster than sorting indices by what they point to.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

int main(int argc, char **argv)
{
    if (argc != 4) {
        std::fprintf(stderr, "usage: topk-nth COUNT SHARE ROUNDS\n");
        return 2;
    }
    const std::size_t n = std::strtoull(argv[1], nullptr, 10);
    const std::size_t k = static_cast<std::size_t>(std::atof(argv[2]) * static_cast<double>(n));
    std::vector<float> x(n), magnitude(n);
    std::vector<std::uint32_t> index(2 * k + 1);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float &e : x) {
        e = normal(random);
    }
    for (int round = 0; round < std::atoi(argv[3]); round++) {
        const auto start = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < n; i++) {
            magnitude[i] = std::fabs(x[i]);
        }
        const auto kth = magnitude.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(magnitude.begin(), kth, magnitude.end(), std::greater<float>());
        std::size_t found = 0;
        for (std::size_t i = 0; i < n && found < index.size(); i++) {
            if (std::fabs(x[i]) >= *kth) {
                index[found++] = static_cast<std::uint32_t>(i);
            }
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        if (found < k) {
            std::fprintf(stderr, "topk-nth: %zu of %zu\n", found, k);
            return 1;
        }
        std::printf("%.6f\n", took.count());
    }
}
