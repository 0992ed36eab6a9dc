#include "launch.hpp"

#include <algorithm>
#include <random>
#include <utility>

namespace wattwise {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int kBeatsPerLease = 3;
constexpr Seconds kLongestBeat{60};
constexpr Seconds kLongestPause{3};
// A training does not wait longer for a server that is away.
constexpr std::chrono::milliseconds kPatience{5'000};

// The time between heartbeats; of a lease that never runs out, they only show that the server is there.
Seconds beat_of(double lease) {
  return lease > 0 ? std::min(Seconds{lease / kBeatsPerLease}, kLongestBeat) : kLongestBeat;
}

// Half of it at random, so that trainers that lost one server together do not come back together.
Seconds jittered(Seconds pause) {
  std::random_device random;
  return Seconds{std::uniform_real_distribution<>(pause.count() / 2, pause.count())(random)};
}

// Stops a training that has reached its target or its last epoch, as the server will when it hears of it.
std::optional<v1::Decision> decision_without_server(const v1::JobSpec& spec, const v1::TrainingResult& result) {
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

Launch::Launch(Client& client, const v1::JobSpec& spec) : client_(client) {
  spec_ = client.register_job(spec).job().spec();
  const auto answer = client.next_batch_size(spec_.job_id());
  trial_ = answer.trial();
  reason_ = answer.reason();
  talking_ = std::thread([this] {
    try {
      talk(beat_of(spec_.trial_lease_seconds()));
    } catch (const std::exception&) {
      // Nothing that goes wrong here may disturb the training; reports are answered without this thread.
    }
  });
}

Launch::~Launch() {
  try {
    end(v1::END_REASON_ERROR);
  } catch (const std::exception&) {
    // The server takes the trial for lost when its lease runs out.
  }
}

bool Launch::stopped() const {
  const std::lock_guard lock(mutex_);
  return decision_.has_value();
}

v1::Decision Launch::report(int epoch, double seconds, double joules, double metric) {
  v1::TrainingResult result;
  *result.mutable_trial() = trial_.id();
  result.set_current_epoch(epoch);
  result.set_time_seconds(seconds);
  result.set_energy_joules(joules);
  result.set_metric(metric);
  try {
    {
      const std::lock_guard lock(mutex_);
      if (decision_) return *decision_;
      if (pending_) {
        pending_ = result;
        throw Error(*away_);
      }
    }
    return deliver(result);
  } catch (const Error& error) {
    if (!error.server_away()) throw;
    const auto alone = decision_without_server(spec_, result);
    if (!alone) throw;
    return *alone;
  }
}

void Launch::end(v1::EndReason reason) {
  const std::lock_guard ending(ending_);
  if (std::exchange(told_, true)) return;
  silence();
  if (const auto pending = kept()) {
    try {
      deliver(*pending);
    } catch (const Error& error) {
      if (error.server_away()) throw;
    }
  }
  if (!stopped()) client_.end_trial(trial_.id(), reason, kPatience);
}

// Keeps the lease until the trial is over: by a stream, over which a stop comes in mid-epoch, and by single calls where
// there is none.
void Launch::talk(Seconds every) {
  std::unique_lock lock(mutex_);
  while (!ended_ && !decision_) {
    const auto begun = Clock::now();
    lock.unlock();
    if (beat() && !kept()) listen(every);
    lock.lock();
    // A server that takes no stream is left in peace; one that is away, or broke a stream, is looked for.
    const bool look = pending_ || Clock::now() - begun > kLongestPause;
    changed_.wait_for(lock, jittered(look ? std::min(every, kLongestPause) : every),
                      [this] { return ended_ || decision_ || woken_; });
    woken_ = false;
  }
}

// Says that the trainer lives, with the report that is kept if there is one; tells whether the server is there.
bool Launch::beat() {
  try {
    if (const auto pending = kept()) {
      deliver(*pending);
    } else {
      heard(client_.heartbeat(trial_.id(), kPatience));
    }
  } catch (const Error& error) {
    return !error.server_away();
  }
  return true;
}

// Holds a stream with heartbeats until it breaks, the trial is over, or a report was lost.
void Launch::listen(Seconds every) {
  grpc::ClientContext context;
  client_.prepare(context, new_request_id());
  std::unique_lock lock(mutex_);
  if (ended_) return;
  stream_ = &context;
  lock.unlock();
  const auto stream = client_.trainer().StreamResults(&context);
  bool broken = false;
  std::thread reading([&] {
    v1::StreamResultsResponse response;
    while (stream->Read(&response)) heard(response.decision());
    {
      const std::lock_guard told(mutex_);
      broken = true;
    }
    changed_.notify_all();
  });
  v1::StreamResultsRequest request;
  *request.mutable_heartbeat()->mutable_trial() = trial_.id();
  while (stream->Write(request)) {
    lock.lock();
    const bool over = changed_.wait_for(lock, every, [&] { return broken || ended_ || decision_ || pending_; });
    lock.unlock();
    if (over) break;
  }
  context.TryCancel();
  reading.join();
  stream->Finish();
  lock.lock();
  stream_ = nullptr;
}

v1::Decision Launch::deliver(const v1::TrainingResult& result) {
  try {
    const v1::Decision decision = client_.report_result(result, kPatience);
    heard(decision);
    settle(result, std::nullopt);
    return decision;
  } catch (const Error& error) {
    settle(result, error.server_away() ? std::optional<Error>(error) : std::nullopt);
    throw;
  }
}

// Keeps a report that was lost, unless a newer one is kept already.
void Launch::settle(const v1::TrainingResult& result, const std::optional<Error>& away) {
  {
    const std::lock_guard lock(mutex_);
    if (pending_ && pending_->current_epoch() > result.current_epoch()) return;
    woken_ = away && !pending_;
    pending_ = away ? std::optional<v1::TrainingResult>(result) : std::nullopt;
    away_ = away;
  }
  changed_.notify_all();
}

std::optional<v1::TrainingResult> Launch::kept() const {
  const std::lock_guard lock(mutex_);
  return pending_;
}

void Launch::heard(const v1::Decision& decision) {
  {
    const std::lock_guard lock(mutex_);
    if (!decision.stop_train() || decision_) return;
    decision_ = decision;
  }
  changed_.notify_all();
}

void Launch::silence() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    if (stream_ != nullptr) stream_->TryCancel();
  }
  changed_.notify_all();
  if (talking_.joinable()) talking_.join();
}

}  // namespace wattwise
