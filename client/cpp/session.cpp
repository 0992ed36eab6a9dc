#include "session.hpp"

#include "answers.hpp"

#include <algorithm>
#include <random>
#include <utility>

#include <google/protobuf/util/time_util.h>

namespace wattwise {
namespace {

using google::protobuf::util::TimeUtil;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr char kJobNotFound[] = "ERROR_REASON_JOB_NOT_FOUND";
// The time between heartbeats if the server names none, which then only show that it is up.
constexpr Seconds kLongestInterval{60};
// Below a third of the shortest lease.
constexpr Seconds kShortestInterval{0.25};
constexpr Seconds kLongestPause{3};
// The default of JobSpec.max_epochs, for a job that no server has registered.
constexpr int kDefaultMaxEpochs = 100;
// The longest time that an unavailable server delays a training.
constexpr std::chrono::milliseconds kTimeout{5'000};

// The time between heartbeats that an answer of the server names.
template <class Answer>
Seconds heartbeat_interval(const Answer& answer) {
  if (!answer.has_heartbeat_interval()) return kLongestInterval;
  const auto& named = answer.heartbeat_interval();
  const Seconds interval{static_cast<double>(named.seconds()) + named.nanos() / 1e9};
  return std::clamp(interval, kShortestInterval, kLongestInterval);
}

// Half of the pause is random, so that the trainers of one server do not all retry at the same time.
Seconds jittered(Seconds pause) {
  std::random_device random;
  return Seconds{std::uniform_real_distribution<>(pause.count() / 2, pause.count())(random)};
}

// Stops a training that has reached its target or its last epoch, as the server would.
v1::Decision decide_without_server(const v1::JobSpec& spec, const v1::TrainingResult& result) {
  const double target = spec.target().value();
  const bool lower = spec.target().direction() == v1::DIRECTION_LOWER_IS_BETTER;
  const bool reached = lower ? result.measurement().metric() <= target : result.measurement().metric() >= target;
  v1::Decision decision;
  decision.set_last_epoch(result.measurement().epoch());
  if (!reached && result.measurement().epoch() < (spec.has_max_epochs() ? spec.max_epochs() : kDefaultMaxEpochs)) {
    decision.set_message("training continues without the server");
    return decision;
  }
  decision.set_stop_train(true);
  decision.set_target_reached(reached);
  decision.set_end_reason(reached ? v1::END_REASON_TARGET_REACHED : v1::END_REASON_MAX_EPOCHS);
  decision.set_message(std::string(reached ? "target" : "max epochs") + " reached without the server");
  return decision;
}

}  // namespace

TrialSession::TrialSession(Client& client, const v1::JobSpec& spec, int fallback, bool registered)
    : client_(client), job_(spec), spec_(job_), start_(TimeUtil::GetCurrentTime()) {
  const auto& sizes = job_.batch_sizes();
  if (fallback != 0 && std::find(sizes.begin(), sizes.end(), fallback) == sizes.end()) {
    throw std::invalid_argument("the fallback " + std::to_string(fallback) + " is not one of the job's batch sizes");
  }
  request_trial(fallback, registered);
  if (alone()) return;
  interval_ = heartbeat_interval(trial_);
  thread_ = std::thread([this] {
    try {
      keep_alive();
    } catch (const std::exception&) {
      // A failure here must not disturb the training. Reports do not need this thread.
    }
  });
}

void TrialSession::request_trial(int fallback, bool registered) {
  try {
    if (!registered) spec_ = client_.register_job(job_).job().spec();
    const auto response = client_.get_next_batch_size(job_.job_id(), launch_id_);
    trial_ = response.trial();
    reason_ = trial_.reason();
  } catch (const Error& error) {
    const bool away = error.server_away() && !error.denied();
    if (fallback == 0 || !(away || error.nothing_left())) throw;
    // The server may have dispatched a trial with another batch size for the first id, whose answer was lost.
    launch_id_ = new_id();
    trial_.mutable_id()->set_job_id(job_.job_id());
    trial_.mutable_id()->set_launch_id(launch_id_);
    trial_.set_batch_size(fallback);
    reason_ = "the fallback batch size " + std::to_string(fallback) + ", because there is no trial: " + error.what();
    train_alone("training with " + reason_);
  }
}

TrialSession::~TrialSession() {
  try {
    if (end_reason() == v1::END_REASON_UNSPECIFIED) end(v1::END_REASON_ERROR);
  } catch (const std::exception&) {
    // The trial is lost when its lease expires.
  }
}

bool TrialSession::stopped() const {
  const std::lock_guard lock(mutex_);
  return decision_.has_value();
}

std::optional<v1::Decision> TrialSession::decision() const {
  const std::lock_guard lock(mutex_);
  return decision_ ? decision_ : interim_;
}

bool TrialSession::alone() const { return state().link == Link::kDetached; }

v1::EndReason TrialSession::end_reason() const {
  const std::lock_guard lock(mutex_);
  return ended_.value_or(v1::END_REASON_UNSPECIFIED);
}

v1::Decision TrialSession::report(int epoch, double seconds, std::optional<double> joules, double metric,
                                  const v1::Monitor& monitor) {
  v1::TrainingResult result;
  *result.mutable_trial() = trial_.id();
  v1::Measurement& measurement = *result.mutable_measurement();
  measurement.set_epoch(epoch);
  measurement.set_time_seconds(seconds);
  if (joules) measurement.set_energy_joules(*joules);
  measurement.set_metric(metric);
  if (monitor.kinds_size() > 0) *result.mutable_monitor() = monitor;
  std::optional<Error> outage;
  {
    const std::lock_guard lock(mutex_);
    if (decision_) return *decision_;
    if (undelivered_) {
      undelivered_ = result;
      outage = outage_;
    }
  }
  if (!outage && !alone()) {
    try {
      if (const auto decision = deliver(result)) {
        if (decision->stop_train() || !decide_without_server(spec_, result).stop_train()) {
          keep(result);
          return *decision;
        }
        client_.warn("training stops although the server lets trial " + std::to_string(trial_.id().trial_number()) +
                     " continue after epoch " + std::to_string(epoch) + ", in which it reached its target or ended: a fault");
      }
    } catch (const Error& error) {
      if (!error.server_away()) throw;
      outage = error;
    }
  }
  keep(result);
  const v1::Decision decision = decide_without_server(spec_, result);
  const std::lock_guard lock(mutex_);
  const bool detached = state_.link == Link::kDetached;
  if (!decision.stop_train() && outage && !detached) throw Error(*outage);
  if (decision.stop_train()) {
    (detached ? decision_ : interim_) = decision;
    state_ = state_.after(Event::kClosed);
  }
  return decision;
}

void TrialSession::end(v1::EndReason reason) {
  const std::lock_guard ending(ending_);
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_ = reason;
    reason = *ended_;
    state_ = state_.after(Event::kClosed);
    if (stream_ != nullptr) stream_->TryCancel();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (const auto result = undelivered()) {
    try {
      deliver(*result);
    } catch (const Error& error) {
      if (error.server_away()) throw;
    }
  }
  const TrialState last = state();
  if (last.progress == Progress::kSettled) return;
  if (last.link != Link::kDetached) {
    try {
      if (last.progress == Progress::kEnded) client_.end_trial(trial_.id(), reason, kTimeout);
      return note(Event::kDelivered);
    } catch (const Error& error) {
      if (stop_if_deleted(error)) return;
      if (!error.unknown_trial()) throw;
      forget_if_unknown(error);
    }
  }
  client_.register_job(job_, kTimeout);
  client_.import_trial(import_request(reason), kTimeout);
  note(Event::kDelivered);
}

v1::ImportTrialRequest TrialSession::import_request(v1::EndReason reason) const {
  const std::lock_guard lock(mutex_);
  v1::ImportTrialRequest request;
  request.set_job_id(job_.job_id());
  request.set_launch_id(launch_id_);
  request.set_batch_size(batch_size());
  for (const auto& measurement : measurements_) *request.add_measurements() = measurement;
  request.set_end_reason(reason);
  *request.mutable_start_time() = start_;
  if (monitor_.kinds_size() > 0) *request.mutable_monitor() = monitor_;
  return request;
}

// Renews the lease until the trial ends: by a stream, on which the server can push a stop, or by unary calls while there
// is no stream.
void TrialSession::keep_alive() {
  // How many streams in a row broke soon, as all streams do through some proxies.
  int broken = 0;
  std::unique_lock lock(mutex_);
  while (!ended_ && !decision_ && state_.link != Link::kDetached) {
    const auto start = Clock::now();
    lock.unlock();
    if (send_heartbeat() && !undelivered() && !alone() && listen()) ++broken;
    lock.lock();
    const bool lasted = Clock::now() - start > kLongestPause;
    if (lasted) broken = 0;
    // Try again soon if the server is away or a stream broke, but not if the server accepts no stream.
    const bool soon = undelivered_ || lasted || broken == 1;
    changed_.wait_for(lock, jittered(soon ? std::min(interval_, kLongestPause) : interval_),
                      [this] { return ended_ || decision_ || woken_ || state_.link == Link::kDetached; });
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
    stop_if_deleted(error);
    forget_if_unknown(error);
    if (error.server_away()) note(Event::kUnreachable);
    return !error.server_away();
  }
  return true;
}

// Holds a stream open with heartbeats until it breaks, the trial ends, or a report could not be delivered. Returns whether
// its connection broke.
bool TrialSession::listen() {
  grpc::ClientContext context;
  client_.prepare(context, new_id());
  std::unique_lock lock(mutex_);
  if (ended_) return false;
  stream_ = &context;
  lock.unlock();
  const auto stream = client_.trainer().StreamResults(&context);
  bool broken = false;
  std::thread reading([&] {
    v1::StreamResultsResponse response;
    for (bool valid = true; stream->Read(&response);) {
      if (!valid) continue;
      // Heartbeats have no answer: a server that sends decisions without end would take time from the training.
      valid = response.decision().stop_train();
      if (valid) {
        check_decision("StreamResults", response);
        apply(response.decision());
      } else {
        context.TryCancel();
      }
    }
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
    const bool done = changed_.wait_for(lock, interval_, [&] { return broken || ended_ || decision_ || undelivered_; });
    // A broken stream keeps its status.
    if (done && !broken) context.TryCancel();
    lock.unlock();
    if (done) break;
  }
  reading.join();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) {
    stop_if_deleted(Error(status));
    forget_if_unknown(Error(status));
  }
  lock.lock();
  stream_ = nullptr;
  return status.error_code() == grpc::StatusCode::UNAVAILABLE;
}

// Sends a report, and keeps it if the server is away. Returns nullopt if the server does not know the trial.
std::optional<v1::Decision> TrialSession::deliver(const v1::TrainingResult& result) {
  try {
    const v1::Decision decision = client_.report_result(result, kTimeout);
    apply(decision);
    keep_undelivered(result, std::nullopt);
    return decision;
  } catch (const Error& error) {
    if (stop_if_deleted(error)) return decision();
    if (forget_if_unknown(error)) return std::nullopt;
    keep_undelivered(result, error.server_away() ? std::optional<Error>(error) : std::nullopt);
    throw;
  }
}

// Stops the training if the error says that the trial was deleted with its job, which must not come back.
bool TrialSession::stop_if_deleted(const Error& error) {
  if (!error.deleted_trial()) return false;
  v1::Decision decision;
  decision.set_stop_train(true);
  decision.set_end_reason(v1::END_REASON_JOB_DELETED);
  decision.set_message(error.what());
  apply(decision);
  return true;
}

// Trains alone if the error says that the server does not know the trial.
bool TrialSession::forget_if_unknown(const Error& error) {
  if (!error.unknown_trial()) return false;
  train_alone("training continues without the server, which does not know the trial: " + std::string(error.what()));
  return true;
}

void TrialSession::train_alone(const std::string& warning) {
  {
    const std::lock_guard lock(mutex_);
    if (state_.link == Link::kDetached) return;
    state_ = state_.after(Event::kUnknown);
    undelivered_.reset();
    outage_.reset();
  }
  changed_.notify_all();
  client_.warn(warning);
}

// Keeps a measurement, in case the trial has to be imported.
void TrialSession::keep(const v1::TrainingResult& result) {
  const std::lock_guard lock(mutex_);
  if (!measurements_.empty() && measurements_.back().epoch() >= result.measurement().epoch()) return;
  v1::Measurement& measurement = measurements_.emplace_back();
  measurement = result.measurement();
  *measurement.mutable_report_time() = TimeUtil::GetCurrentTime();
  if (result.has_monitor()) monitor_ = result.monitor();
}

// Keeps a report during an outage, unless a newer one is kept; drops the kept one if there is none.
void TrialSession::keep_undelivered(const v1::TrainingResult& result, const std::optional<Error>& outage) {
  {
    const std::lock_guard lock(mutex_);
    if (outage) state_ = state_.after(Event::kUnreachable);
    if (state_.link == Link::kDetached) return;
    if (undelivered_ && undelivered_->measurement().epoch() > result.measurement().epoch()) return;
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
  std::vector<std::string> messages;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& warning : decision.warnings()) {
      if (warned_.size() >= kMostWarnings) break;
      if (warned_.insert(warning.reason()).second) messages.push_back(warning.message());
    }
    if (decision.stop_train() && !decision_) decision_ = decision;
    const bool deleted = decision.end_reason() == v1::END_REASON_JOB_DELETED;
    state_ = state_.after(deleted ? Event::kDeleted : decision.stop_train() ? Event::kStopped : Event::kAnswered);
    interval_ = heartbeat_interval(decision);
  }
  changed_.notify_all();
  for (const auto& message : messages) client_.warn(message);
}

void TrialSession::note(Event event) {
  const std::lock_guard lock(mutex_);
  state_ = state_.after(event);
}

TrialState TrialSession::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

bool attempts(Client& client, const v1::JobSpec& spec, int max_tries, int fallback,
              const std::function<void(TrialSession&, int attempt)>& train) {
  bool registered = false;
  for (int attempt = 0; attempt < max_tries; ++attempt) {
    std::optional<TrialSession> session;
    try {
      session.emplace(client, spec, fallback, registered);
    } catch (const Error& error) {
      if (attempt > 0 && error.reason == kJobNotFound) return false;
      throw;
    }
    train(*session, attempt);
    const auto decision = session->decision();
    try {
      session->end(v1::END_REASON_COMPLETED);
    } catch (const Error& error) {
      client.warn(std::string("the end of the trial could not be reported: ") + error.what());
    }
    if (decision && decision->target_reached()) return true;
    if (!decision && session->end_reason() != v1::END_REASON_OUT_OF_MEMORY) return false;
    // A job that was deleted must not be registered again.
    registered = !session->alone();
  }
  return false;
}

}  // namespace wattwise
