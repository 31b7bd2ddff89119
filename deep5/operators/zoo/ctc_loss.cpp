// Connectionist temporal classification (Graves et al., ICML 2006) on logarithms of probabilities.
//
// Of a sample, l' is the labelling with a blank before, behind and between its labels, of 2 l + 1 places. alpha(t, s)
// is the logarithm of the probability of all that has reached place s at step t, beta(t, s) that of all that leads from
// there to the end, step t left out: alpha + beta is the logarithm of the probability of all that passes there.
#include <deep5/operator.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

template <typename T>
class CTCLoss : public deep5::Operator {
 public:
  CTCLoss(int64_t blank, bool zero_infinity) : blank_(blank), zero_infinity_(zero_infinity) {}

  void forward(deep5::Tensor<const T> activations, deep5::Tensor<const int32_t> labels,
               deep5::Tensor<const int32_t> label_lengths, deep5::Tensor<const int32_t> input_lengths,
               deep5::Tensor<T> costs) {
    Batch batch(*this, activations, labels, label_lengths, input_lengths);
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < batch.samples; ++n) {
      Sample sample(batch, n);
      sample.log_softmax();
      S cost = -sample.forward();
      costs[n] = static_cast<T>(zero_infinity_ && cost == kInfinity ? S(0) : cost);
    }
    report("steps", double(batch.all_steps));
  }

  void backward(deep5::Tensor<const T> dcosts, deep5::Tensor<const T> activations, deep5::Tensor<const int32_t> labels,
                deep5::Tensor<const int32_t> label_lengths, deep5::Tensor<const int32_t> input_lengths,
                deep5::Tensor<const T>, deep5::Tensor<T> gradient) {
    if (!gradient) return;
    Batch batch(*this, activations, labels, label_lengths, input_lengths);
#pragma omp parallel for schedule(dynamic)
    for (int64_t n = 0; n < batch.samples; ++n) {
      Sample sample(batch, n);
      sample.log_softmax();
      S log_likelihood = sample.forward();
      sample.backward(log_likelihood, static_cast<S>(dcosts[n]), zero_infinity_, gradient);
    }
  }

 private:
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  static constexpr S kInfinity = std::numeric_limits<S>::infinity();

  static S log_sum(S a, S b) {
    if (a < b) std::swap(a, b);
    return b == -kInfinity ? a : a + std::log1p(std::exp(b - a));
  }

  // The inputs, checked, and room for each thread: none may fail where threads run.
  struct Batch {
    deep5::Tensor<const T> activations;
    deep5::Tensor<const int32_t> labels, label_lengths, input_lengths;
    int64_t samples, classes, blank, longest = 0, most_steps = 0, all_steps = 0;
    std::vector<int64_t> start;
    std::vector<S> room;

    Batch(const CTCLoss &op, deep5::Tensor<const T> x, deep5::Tensor<const int32_t> l, deep5::Tensor<const int32_t> ll,
          deep5::Tensor<const int32_t> il)
        : activations(x), labels(l), label_lengths(ll), input_lengths(il), samples(x.shape(1)), classes(x.shape(2)),
          blank(op.blank_) {
      int64_t total = 0;
      for (int64_t n = 0; n < samples; ++n) {
        int64_t length = label_lengths[n], steps = input_lengths[n];
        if (length < 0 || total + length > labels.size()) fail("label length", n, length, labels.size() - total);
        if (steps < 0 || steps > x.shape(0)) fail("input length", n, steps, x.shape(0));
        start.push_back(total);
        total += length;
        longest = std::max(longest, length), most_steps = std::max(most_steps, steps), all_steps += steps;
      }
      if (total != labels.size()) {
        throw std::invalid_argument("got " + std::to_string(labels.size()) + " labels; allowed: the sum of the label " +
                                    "lengths, " + std::to_string(total));
      }
      for (int64_t at = 0; at < total; ++at) {
        if (labels[at] < 0 || labels[at] >= classes || labels[at] == blank) {
          throw std::invalid_argument("got the label " + std::to_string(labels[at]) + " at place " +
                                      std::to_string(at) + "; allowed: 0 to " + std::to_string(classes - 1) +
                                      ", the blank " + std::to_string(blank) + " left out");
        }
      }
      room.resize(static_cast<size_t>(each() * threads()));
    }

    // Of a thread: the log-probabilities, alpha, beta at two steps, and a sum for each class.
    int64_t each() const { return most_steps * classes + (most_steps + 2) * (2 * longest + 1) + classes; }

    static int64_t threads() {
#if defined(_OPENMP)
      return omp_get_max_threads();
#else
      return 1;
#endif
    }

    static void fail(const char *what, int64_t n, int64_t got, int64_t most) {
      throw std::invalid_argument(std::string("got the ") + what + " " + std::to_string(got) + " of sample " +
                                  std::to_string(n) + "; allowed: 0 to " + std::to_string(most));
    }
  };

  struct Sample {
    const Batch &batch;
    int64_t n, steps, places;
    const int32_t *labels;
    S *log_y, *alpha, *beta, *sums;

    Sample(Batch &given, int64_t number)
        : batch(given), n(number), steps(given.input_lengths[number]), places(2 * given.label_lengths[number] + 1),
          labels(given.labels.data() + given.start[static_cast<size_t>(number)]) {
#if defined(_OPENMP)
      log_y = given.room.data() + omp_get_thread_num() * given.each();
#else
      log_y = given.room.data();
#endif
      alpha = log_y + given.most_steps * given.classes;
      beta = alpha + given.most_steps * (2 * given.longest + 1);
      sums = beta + 2 * (2 * given.longest + 1);
    }

    int64_t label(int64_t s) const { return s % 2 ? labels[s / 2] : batch.blank; }
    // Whether place s may be reached from s - 2: over a blank, between two labels that differ (equation 6).
    bool skips(int64_t s) const { return s % 2 && s >= 2 && labels[s / 2] != labels[s / 2 - 1]; }

    void log_softmax() {
      for (int64_t t = 0; t < steps; ++t) {
        const T *x = batch.activations.data() + (t * batch.activations.shape(1) + n) * batch.classes;
        S *y = log_y + t * batch.classes, most = -kInfinity, sum = 0;
        for (int64_t c = 0; c < batch.classes; ++c) most = std::max(most, static_cast<S>(x[c]));
        for (int64_t c = 0; c < batch.classes; ++c) sum += std::exp(static_cast<S>(x[c]) - most);
        S log_total = most + std::log(sum);
        for (int64_t c = 0; c < batch.classes; ++c) y[c] = static_cast<S>(x[c]) - log_total;
      }
    }

    // Equations 5 to 8; returns ln p(l | x).
    S forward() const {
      if (steps == 0) return places == 1 ? S(0) : -kInfinity;
      std::fill(alpha, alpha + steps * places, -kInfinity);
      alpha[0] = log_y[batch.blank];
      if (places > 1) alpha[1] = log_y[label(1)];
      for (int64_t t = 1; t < steps; ++t) {
        const S *before = alpha + (t - 1) * places, *y = log_y + t * batch.classes;
        S *now = alpha + t * places;
        for (int64_t s = 0; s < places; ++s) {
          S sum = before[s];
          if (s >= 1) sum = log_sum(sum, before[s - 1]);
          if (skips(s)) sum = log_sum(sum, before[s - 2]);
          now[s] = sum + y[label(s)];
        }
      }
      const S *last = alpha + (steps - 1) * places;
      return places > 1 ? log_sum(last[places - 1], last[places - 2]) : last[0];
    }

    // Equations 9 to 11 and 16: dcost (y - sum of what passes label k at step t, over p).
    void backward(S log_likelihood, S dcost, bool zero_infinity, deep5::Tensor<T> gradient) const {
      auto row = [&](int64_t t) { return gradient.data() + (t * gradient.shape(1) + n) * batch.classes; };
      bool impossible = log_likelihood == -kInfinity;
      int64_t used = impossible && zero_infinity ? 0 : steps;
      for (int64_t t = used; t < gradient.shape(0); ++t) std::fill(row(t), row(t) + batch.classes, T(0));
      if (impossible) {
        const T none = static_cast<T>(std::numeric_limits<float>::quiet_NaN());
        for (int64_t t = 0; t < used; ++t) std::fill(row(t), row(t) + batch.classes, none);
        return;
      }
      S *now = beta, *after = beta + places;
      for (int64_t t = steps - 1; t >= 0; --t) {
        if (t == steps - 1) {
          for (int64_t s = 0; s < places; ++s) now[s] = s >= places - 2 ? S(0) : -kInfinity;
        } else {
          const S *y = log_y + (t + 1) * batch.classes;
          for (int64_t s = 0; s < places; ++s) {
            S sum = after[s] + y[label(s)];
            if (s + 1 < places) sum = log_sum(sum, after[s + 1] + y[label(s + 1)]);
            if (s + 2 < places && skips(s + 2)) sum = log_sum(sum, after[s + 2] + y[label(s + 2)]);
            now[s] = sum;
          }
        }
        std::fill(sums, sums + batch.classes, S(0));
        for (int64_t s = 0; s < places; ++s) {
          sums[label(s)] += std::exp(alpha[t * places + s] + now[s] - log_likelihood);
        }
        const S *y = log_y + t * batch.classes;
        T *to = row(t);
        for (int64_t c = 0; c < batch.classes; ++c) to[c] = static_cast<T>(dcost * (std::exp(y[c]) - sums[c]));
        std::swap(now, after);
      }
    }
  };

  int64_t blank_;
  bool zero_infinity_;
};
