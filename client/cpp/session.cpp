#include "session.hpp"

#include <algorithm>
#include <random>
#include <utility>

namespace wattwise {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kHeartbeatsPerLease = 3;
constexpr Seconds kLongestInterval{60};
constexpr Seconds kLongestPause{3};
// The longest time that an unavailable server delays a training.
constexpr std::chrono::milliseconds kTimeout{5'000};

// The time between heartbeats. A lease of 0 never expires; its heartbeats only show that the server is up.
Seconds heartbeat_interval(double lease) {
  return lease > 0 ? std::min(Seconds{lease / kHeartbeatsPerLease}, kLongestInterval) : kLongestInterval;
}

// Half of the pause is random, so that the trainers of one server do not all retry at the same time.
Seconds jittered(Seconds pause) {
  std::random_device random;
  return Seconds{std::uniform_real_distribution<>(pause.count() / 2, pause.count())(random)};
}

// Stops a training that has reached its target or its last epoch, as the server would.
std::optional<v1::Decision> decide_without_server(const v1::JobSpec& spec, const v1::TrainingResult& result) {
  const bool reached = spec.higher_is_better_metric() ? result.metric() >= spec.target_metric()
                                                      : result.metric() <= spec.target_metric();
  if (!reached && result.current_epoch() < spec.max_epochs()) return std::nullopt;
  v1::Decision decision;
  decision.set_stop_train(true);
  decision.set_target_reached(reached);
  decision.set_message(std::string(reached ? "target" : "max epochs") + " reached while the server is away");
  return decision;
}

}  // namespace

TrialSession::TrialSession(Client& client, const v1::JobSpec& spec) : client_(client) {
  spec_ = client.register_job(spec).job().spec();
  const auto response = client.get_next_batch_size(spec_.job_id());
  trial_ = response.trial();
  reason_ = response.reason();
  thread_ = std::thread([this] {
    try {
      keep_alive(heartbeat_interval(spec_.trial_lease_seconds()));
    } catch (const std::exception&) {
      // A failure here must not disturb the training. Reports do not need this thread.
    }
  });
}

TrialSession::~TrialSession() {
  try {
    end(v1::END_REASON_ERROR);
  } catch (const std::exception&) {
    // The trial is lost when its lease expires.
  }
}

bool TrialSession::stopped() const {
  const std::lock_guard lock(mutex_);
  return decision_.has_value();
}

v1::Decision TrialSession::report(int epoch, double seconds, double joules, double metric,
                                  const v1::Monitor& monitor) {
  v1::TrainingResult result;
  *result.mutable_trial() = trial_.id();
  result.set_current_epoch(epoch);
  result.set_time_seconds(seconds);
  result.set_energy_joules(joules);
  result.set_metric(metric);
  if (monitor.kinds_size() > 0) *result.mutable_monitor() = monitor;
  try {
    {
      const std::lock_guard lock(mutex_);
      if (decision_) return *decision_;
      if (undelivered_) {
        undelivered_ = result;
        throw Error(*outage_);
      }
    }
    return deliver(result);
  } catch (const Error& error) {
    if (!error.server_away()) throw;
    const auto decision = decide_without_server(spec_, result);
    if (!decision) throw;
    return *decision;
  }
}

void TrialSession::end(v1::EndReason reason) {
  const std::lock_guard ending(ending_);
  if (std::exchange(end_called_, true)) return;
  stop_thread();
  if (const auto result = undelivered()) {
    try {
      deliver(*result);
    } catch (const Error& error) {
      if (error.server_away()) throw;
    }
  }
  if (!stopped()) client_.end_trial(trial_.id(), reason, kTimeout);
}

// Renews the lease until the trial ends: by a stream, on which the server can push a stop, or by unary calls while there
// is no stream.
void TrialSession::keep_alive(Seconds interval) {
  std::unique_lock lock(mutex_);
  while (!closed_ && !decision_) {
    const auto start = Clock::now();
    lock.unlock();
    if (send_heartbeat() && !undelivered()) listen(interval);
    lock.lock();
    // Try again soon if the server is away or a stream broke, but not if the server accepts no stream.
    const bool soon = undelivered_ || Clock::now() - start > kLongestPause;
    changed_.wait_for(lock, jittered(soon ? std::min(interval, kLongestPause) : interval),
                      [this] { return closed_ || decision_ || woken_; });
    woken_ = false;
  }
}

// Sends the undelivered report, or a heartbeat if there is none. Returns whether the server is up.
bool TrialSession::send_heartbeat() {
  try {
    if (const auto result = undelivered()) {
      deliver(*result);
    } else {
      apply(client_.heartbeat(trial_.id(), kTimeout));
    }
  } catch (const Error& error) {
    return !error.server_away();
  }
  return true;
}

// Holds a stream open with heartbeats until it breaks, the trial ends, or a report could not be delivered.
void TrialSession::listen(Seconds interval) {
  grpc::ClientContext context;
  client_.prepare(context, new_request_id());
  std::unique_lock lock(mutex_);
  if (closed_) return;
  stream_ = &context;
  lock.unlock();
  const auto stream = client_.trainer().StreamResults(&context);
  bool broken = false;
  std::thread reading([&] {
    v1::StreamResultsResponse response;
    while (stream->Read(&response)) apply(response.decision());
    {
      const std::lock_guard guard(mutex_);
      broken = true;
    }
    changed_.notify_all();
  });
  v1::StreamResultsRequest request;
  *request.mutable_heartbeat()->mutable_trial() = trial_.id();
  while (stream->Write(request)) {
    lock.lock();
    const bool done = changed_.wait_for(lock, interval, [&] { return broken || closed_ || decision_ || undelivered_; });
    lock.unlock();
    if (done) break;
  }
  context.TryCancel();
  reading.join();
  stream->Finish();
  lock.lock();
  stream_ = nullptr;
}

v1::Decision TrialSession::deliver(const v1::TrainingResult& result) {
  try {
    const v1::Decision decision = client_.report_result(result, kTimeout);
    apply(decision);
    settle(result, std::nullopt);
    return decision;
  } catch (const Error& error) {
    settle(result, error.server_away() ? std::optional<Error>(error) : std::nullopt);
    throw;
  }
}

// Keeps a report that could not be delivered, unless a newer one is kept.
void TrialSession::settle(const v1::TrainingResult& result, const std::optional<Error>& outage) {
  {
    const std::lock_guard lock(mutex_);
    if (undelivered_ && undelivered_->current_epoch() > result.current_epoch()) return;
    woken_ = outage && !undelivered_;
    undelivered_ = outage ? std::optional<v1::TrainingResult>(result) : std::nullopt;
    outage_ = outage;
  }
  changed_.notify_all();
}

std::optional<v1::TrainingResult> TrialSession::undelivered() const {
  const std::lock_guard lock(mutex_);
  return undelivered_;
}

void TrialSession::apply(const v1::Decision& decision) {
  {
    const std::lock_guard lock(mutex_);
    if (!decision.stop_train() || decision_) return;
    decision_ = decision;
  }
  changed_.notify_all();
}

void TrialSession::stop_thread() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    if (stream_ != nullptr) stream_->TryCancel();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

}  // namespace wattwise
