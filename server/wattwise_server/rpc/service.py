"""The RPC methods: translate, call, translate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from datetime import datetime
from functools import partial
from importlib.metadata import version
from operator import attrgetter

from google.protobuf.timestamp_pb2 import Timestamp
from wattwise import v1
from wattwise.rules import MAX_MEASUREMENT_PAGE

from wattwise_server.config import Factors
from wattwise_server.errors import JobNotFoundError
from wattwise_server.observability.call import current_call
from wattwise_server.rpc import answers, requests
from wattwise_server.rpc.calls import Context, StreamLimit
from wattwise_server.rpc.faults import together
from wattwise_server.rpc.paging import (
    EVENTS_AT_A_TIME,
    MEASUREMENTS_AT_A_TIME,
    TRIALS_AT_A_TIME,
    USUAL_MEASUREMENTS,
    PageSpace,
    PageTokens,
    fill,
    page_size,
)
from wattwise_server.rpc.streams import TrialStream, WatchPace
from wattwise_server.usecases.administration import Administration
from wattwise_server.usecases.control import Control
from wattwise_server.usecases.finding import check_job_id
from wattwise_server.usecases.imports import Importer
from wattwise_server.usecases.job_view import job_with_details
from wattwise_server.usecases.power_limits import PowerLimitProfiler
from wattwise_server.usecases.statistics import MAX_RANGES, Division, Statistics
from wattwise_server.usecases.training import Training, trainers_reason

_WATCH_JOBS_SECONDS = 1.0


class BatchSizeOptimizerService(v1.BatchSizeOptimizerServicer):
    """The calls of trainers."""

    def __init__(
        self, training: Training, importer: Importer, power_limits: PowerLimitProfiler, streams: StreamLimit
    ) -> None:
        self._training = training
        self._importer = importer
        self._power_limits = power_limits
        self._streams = streams

    async def RegisterJob(self, request: v1.RegisterJobRequest, context: Context) -> v1.RegisterJobResponse:
        """Creates or confirms a job."""
        call = current_call.get()
        job, created = await self._training.register(requests.job_draft(request), call.reach if call else "")
        return v1.RegisterJobResponse(job=answers.job(job), created=created)

    async def GetNextBatchSize(
        self, request: v1.GetNextBatchSizeRequest, context: Context
    ) -> v1.GetNextBatchSizeResponse:
        """Dispatches a trial."""
        trial = await self._training.next_trial(
            request.job_id,
            request.launch_id,
            resume=request.resume,
            unconnected_ranks=request.unconnected_ranks,
            labels=request.labels,
        )
        return v1.GetNextBatchSizeResponse(trial=answers.trial(trial))

    async def ReportResult(self, request: v1.ReportResultRequest, context: Context) -> v1.ReportResultResponse:
        """Records one epoch's measurement."""
        decision = await self._training.report(requests.report(request))
        return v1.ReportResultResponse(decision=answers.decision(decision))

    async def StreamResults(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes by itself
        self, request_iterator: AsyncIterator[v1.StreamResultsRequest], context: Context
    ) -> None:
        """Records one trial's measurements and pushes its end."""
        with self._streams.opened():
            await TrialStream(self._training, context).serve(request_iterator)

    async def Heartbeat(self, request: v1.HeartbeatRequest, context: Context) -> v1.HeartbeatResponse:
        """Renews a lease."""
        decision = await self._training.heartbeat(requests.trial_id(request))
        return v1.HeartbeatResponse(decision=answers.decision(decision))

    async def EndTrial(self, request: v1.EndTrialRequest, context: Context) -> v1.EndTrialResponse:
        """Ends a trial whose trainer has exited."""
        reason = requests.end_reason(request.end_reason)
        key, _ = together(lambda: requests.trial_id(request), lambda: trainers_reason(reason))
        return v1.EndTrialResponse(trial=answers.trial(await self._training.end_trial(key, reason)))

    async def ImportTrial(self, request: v1.ImportTrialRequest, context: Context) -> v1.ImportTrialResponse:
        """Records a trial that ran without the server."""
        trial, created = await self._importer.import_trial(requests.imported_trial(request))
        return v1.ImportTrialResponse(trial=answers.trial(trial), created=created)

    async def LookupTrial(self, request: v1.LookupTrialRequest, context: Context) -> v1.LookupTrialResponse:
        """Returns the trial of a launch."""
        trial = await self._training.lookup(request.job_id, request.launch_id)
        return v1.LookupTrialResponse(trial=answers.trial(trial))

    async def AcquirePowerLimit(
        self, request: v1.AcquirePowerLimitRequest, context: Context
    ) -> v1.AcquirePowerLimitResponse:
        """Returns what a trial does about the power limit of its batch size."""
        return answers.message(
            v1.AcquirePowerLimitResponse, await self._power_limits.acquire(requests.trial_id(request))
        )

    async def ReportPowerProfile(
        self, request: v1.ReportPowerProfileRequest, context: Context
    ) -> v1.ReportPowerProfileResponse:
        """Records a profile of power limits."""
        limit = await self._power_limits.report(requests.trial_id(request), requests.power_samples(request))
        return v1.ReportPowerProfileResponse(power_setting=v1.PowerSetting(limit_watts_per_gpu=limit))


class JobReaderService(v1.JobReaderServicer):
    """The calls of people and tools that read."""

    def __init__(
        self, administration: Administration, statistics: Statistics, streams: StreamLimit, tokens: PageTokens
    ) -> None:
        self._administration = administration
        self._statistics = statistics
        self._streams = streams
        self._tokens = tokens
        self._pace = WatchPace()

    async def GetJob(self, request: v1.GetJobRequest, context: Context) -> v1.GetJobResponse:
        """Returns one job."""
        job = await self._administration.job(request.job_id)
        return answers.message(v1.GetJobResponse, job_with_details(job))

    async def ListJobs(self, request: v1.ListJobsRequest, context: Context) -> v1.ListJobsResponse:
        """Returns a page of jobs."""
        size, wanted, after = together(
            lambda: page_size(request.page_size),
            lambda: requests.job_list(request),
            lambda: self._tokens.job_place(request),
        )
        page = v1.ListJobsResponse()
        if request.with_total_size:
            page.total_size = await self._administration.count_jobs(wanted)
        return await fill(
            page,
            page.jobs.append,
            size,
            after,
            read=partial(self._statistics.listings, wanted),
            place_of=attrgetter("position"),
            show=partial(answers.message, v1.JobListing),
            token_of=partial(self._tokens.job_token, request),
        )

    async def ListTrials(self, request: v1.ListTrialsRequest, context: Context) -> v1.ListTrialsResponse:
        """Returns a page of trials."""
        size, wanted, place = together(
            lambda: page_size(request.page_size),
            lambda: requests.trial_list(request),
            lambda: self._tokens.place(request),
        )
        page = v1.ListTrialsResponse()
        if request.with_total_size:
            page.total_size = await self._administration.count_trials(wanted)
        return await fill(
            page,
            page.trials.append,
            size,
            place or requests.first_place(request),
            read=partial(self._administration.trials, wanted),
            place_of=attrgetter("place"),
            show=lambda each: each.trial and answers.message(v1.Trial, each.trial),
            at_a_time=TRIALS_AT_A_TIME,
            token_of=partial(self._tokens.token, request),
        )

    async def GetTrial(self, request: v1.GetTrialRequest, context: Context) -> v1.GetTrialResponse:
        """Returns one trial with its power profile."""
        return answers.message(v1.GetTrialResponse, await self._administration.trial(requests.shown_trial_id(request)))

    async def ListMeasurements(
        self, request: v1.ListMeasurementsRequest, context: Context
    ) -> v1.ListMeasurementsResponse:
        """Returns a page of measurements."""
        size, key, place = together(
            lambda: page_size(request.page_size, USUAL_MEASUREMENTS, MAX_MEASUREMENT_PAGE),
            lambda: requests.shown_trial_id(request),
            lambda: self._tokens.place(request),
        )
        page = v1.ListMeasurementsResponse()
        return await fill(
            page,
            page.measurements.append,
            size,
            next(iter(place), 0),
            read=partial(self._administration.measurements, key, newest_first=request.newest_first),
            place_of=attrgetter("epoch"),
            show=partial(answers.message, v1.Measurement),
            at_a_time=MEASUREMENTS_AT_A_TIME,
            token_of=lambda end: self._tokens.token(request, (end,)),
        )

    async def ListEvents(self, request: v1.ListEventsRequest, context: Context) -> v1.ListEventsResponse:
        """Returns a page of events."""
        size, after, wanted = together(
            lambda: page_size(request.page_size),
            lambda: self._tokens.place(request),
            lambda: requests.event_list(request),
        )
        page = v1.ListEventsResponse()
        return await fill(
            page,
            page.events.append,
            size,
            after,
            read=partial(self._administration.events, wanted),
            place_of=attrgetter("place"),
            show=partial(answers.message, v1.Event),
            at_a_time=EVENTS_AT_A_TIME,
            token_of=partial(self._tokens.token, request),
        )

    async def WatchJob(
        self, request: v1.WatchJobRequest, context: Context
    ) -> AsyncGenerator[v1.WatchJobResponse, None]:
        """Yields the current state of a job, then its newest state after changes."""
        with self._streams.opened(), self._pace.opened() as pause:
            async with aclosing(self._administration.watch_job(request.job_id)) as states:
                async for job in states:
                    yield answers.message(v1.WatchJobResponse, job_with_details(job))
                    await pause()

    async def WatchTrials(
        self, request: v1.WatchTrialsRequest, context: Context
    ) -> AsyncGenerator[v1.WatchTrialsResponse, None]:
        """Yields the running trials of a job, then those that change."""
        with self._streams.opened(), self._pace.opened() as pause:
            async with aclosing(self._administration.watch_trials(request.job_id)) as changes:
                async for trials in changes:
                    response, space = v1.WatchTrialsResponse(), PageSpace()
                    for trial in map(partial(answers.message, v1.Trial), trials):
                        if not space.takes(trial):
                            yield response
                            response, space = v1.WatchTrialsResponse(), PageSpace()
                            space.takes(trial)
                        response.trials.append(trial)
                    yield response
                    await pause()

    async def WatchJobs(
        self, request: v1.WatchJobsRequest, context: Context
    ) -> AsyncGenerator[v1.WatchJobsResponse, None]:
        """Yields the ids of jobs that change."""
        with self._streams.opened():
            async with aclosing(self._administration.watch_jobs(request.job_id_prefix)) as changes:
                async for job_ids, others in changes:
                    yield v1.WatchJobsResponse(job_ids=job_ids, all_jobs=others)
                    await asyncio.sleep(_WATCH_JOBS_SECONDS)

    async def GetJobStatistics(
        self, request: v1.GetJobStatisticsRequest, context: Context
    ) -> v1.GetJobStatisticsResponse:
        """Returns the statistics of a job."""
        statistics = await self._statistics.job(request.job_id)
        return v1.GetJobStatisticsResponse(statistics=answers.message(v1.JobStatistics, statistics))

    async def ListTrialBuckets(
        self, request: v1.ListTrialBucketsRequest, context: Context
    ) -> v1.ListTrialBucketsResponse:
        """Returns a page of ranges of trials."""
        job_id, size, max_ranges, place = together(
            lambda: check_job_id(request.job_id),
            lambda: page_size(request.page_size, MAX_RANGES, MAX_RANGES),
            lambda: requests.max_ranges(request),
            lambda: self._tokens.place(request),
        )
        *division, after = place or (-1,)
        course = await self._statistics.course(
            job_id,
            max_ranges,
            Division(*division) if division else None,
            with_excluded=request.with_excluded,
        )
        page = v1.ListTrialBucketsResponse()
        return await fill(
            page,
            page.MergeFrom,
            size,
            after,
            read=course.behind,
            place_of=attrgetter("place"),
            show=answers.trial_range,
            token_of=lambda end: self._tokens.token(request, (*course.division, end)),
        )

    async def ListPowerProfiles(
        self, request: v1.ListPowerProfilesRequest, context: Context
    ) -> v1.ListPowerProfilesResponse:
        """Returns a page of power profiles."""
        job_id, size, place = together(
            lambda: check_job_id(request.job_id),
            lambda: page_size(request.page_size),
            lambda: self._tokens.place(request),
        )
        page = v1.ListPowerProfilesResponse()
        return await fill(
            page,
            page.power_profiles.append,
            size,
            next(iter(place), 0),
            read=partial(self._statistics.profiles, job_id),
            place_of=attrgetter("batch_size"),
            show=partial(answers.message, v1.PowerProfile),
            token_of=lambda end: self._tokens.token(request, (end,)),
        )

    async def GetTotals(self, request: v1.GetTotalsRequest, context: Context) -> v1.GetTotalsResponse:
        """Returns the totals of several jobs."""
        totals = await self._statistics.totals(request.job_id_prefix)
        return v1.GetTotalsResponse(totals=answers.message(v1.Totals, totals))

    async def PreviewNext(self, request: v1.PreviewNextRequest, context: Context) -> v1.PreviewNextResponse:
        """Previews what the next launch would get."""
        return answers.message(v1.PreviewNextResponse, await self._administration.preview(request.job_id))


class JobControlService(v1.JobControlServicer):
    """The calls of people and tools that change jobs."""

    def __init__(self, administration: Administration, control: Control) -> None:
        self._administration = administration
        self._control = control

    async def DeleteJob(self, request: v1.DeleteJobRequest, context: Context) -> v1.DeleteJobResponse:
        """Deletes a job."""
        try:
            job_id, create_time = together(lambda: check_job_id(request.job_id), lambda: requests.create_time(request))
            job, num_stopped = await self._administration.delete_job(job_id, create_time)
        except JobNotFoundError:
            if not request.allow_missing:
                raise
            return v1.DeleteJobResponse()
        return v1.DeleteJobResponse(job=answers.job(job), num_stopped_trials=num_stopped)

    async def ResetJob(self, request: v1.ResetJobRequest, context: Context) -> v1.ResetJobResponse:
        """Begins a search again."""
        job_id, request_id = together(lambda: check_job_id(request.job_id), lambda: requests.request_id(request))
        job = await self._control.reset(job_id, request_id)
        return answers.message(v1.ResetJobResponse, job_with_details(job))

    async def SetTrialExcluded(
        self, request: v1.SetTrialExcludedRequest, context: Context
    ) -> v1.SetTrialExcludedResponse:
        """Excludes or includes a trial."""
        key, excluded = together(
            lambda: requests.shown_trial_id(request), lambda: requests.required(request, "excluded")
        )
        trial, job = await self._control.set_trial_excluded(key, excluded=excluded)
        found = job_with_details(job)
        return v1.SetTrialExcludedResponse(
            trial=answers.trial(trial),
            job=answers.message(v1.Job, found.job),
            details=answers.message(v1.JobDetails, found.details),
        )

    async def SetBatchSizeBanned(
        self, request: v1.SetBatchSizeBannedRequest, context: Context
    ) -> v1.SetBatchSizeBannedResponse:
        """Bans a batch size, or lifts its ban."""
        job_id, batch_size, banned = together(
            lambda: check_job_id(request.job_id),
            lambda: requests.batch_size(request),
            lambda: requests.required(request, "banned"),
        )
        job = await self._control.set_banned(job_id, batch_size, banned=banned)
        return answers.message(v1.SetBatchSizeBannedResponse, job_with_details(job))

    async def SetPinnedBatchSize(
        self, request: v1.SetPinnedBatchSizeRequest, context: Context
    ) -> v1.SetPinnedBatchSizeResponse:
        """Pins a batch size, or unpins it."""
        if request.HasField("batch_size"):
            job_id, batch_size = together(lambda: check_job_id(request.job_id), lambda: requests.batch_size(request))
            job = await self._control.pin(job_id, batch_size)
        else:
            job = await self._control.unpin(request.job_id)
        return answers.message(v1.SetPinnedBatchSizeResponse, job_with_details(job))

    async def ReadmitBatchSize(
        self, request: v1.ReadmitBatchSizeRequest, context: Context
    ) -> v1.ReadmitBatchSizeResponse:
        """Readmits a batch size to the search."""
        job_id, batch_size, request_id = together(
            lambda: check_job_id(request.job_id),
            lambda: requests.batch_size(request),
            lambda: requests.request_id(request),
        )
        job = await self._control.readmit(job_id, batch_size, request_id)
        return answers.message(v1.ReadmitBatchSizeResponse, job_with_details(job))

    async def SetJobPaused(self, request: v1.SetJobPausedRequest, context: Context) -> v1.SetJobPausedResponse:
        """Pauses or resumes a search."""
        job_id, paused = together(lambda: check_job_id(request.job_id), lambda: requests.required(request, "paused"))
        job = await self._control.set_paused(job_id, paused=paused)
        return answers.message(v1.SetJobPausedResponse, job_with_details(job))

    async def RequestBaseline(self, request: v1.RequestBaselineRequest, context: Context) -> v1.RequestBaselineResponse:
        """Requests a trial of the default batch size."""
        job_id, request_id = together(lambda: check_job_id(request.job_id), lambda: requests.request_id(request))
        job = await self._control.request_baseline(job_id, request_id)
        return answers.message(v1.RequestBaselineResponse, job_with_details(job))

    async def SetBaselineEvery(
        self, request: v1.SetBaselineEveryRequest, context: Context
    ) -> v1.SetBaselineEveryResponse:
        """Sets how many launches one baseline comes in."""
        job_id, every = together(lambda: check_job_id(request.job_id), lambda: requests.every(request))
        job = await self._control.set_baseline_every(job_id, every)
        return answers.message(v1.SetBaselineEveryResponse, job_with_details(job))

    async def SetJobPolicy(self, request: v1.SetJobPolicyRequest, context: Context) -> v1.SetJobPolicyResponse:
        """Changes a policy."""
        draft = requests.policy_draft(request)
        job = await self._control.set_policy(request.job_id, draft)
        return answers.message(v1.SetJobPolicyResponse, job_with_details(job))


class ServerInfoService(v1.ServerInfoServicer):
    """The calls about the server itself."""

    def __init__(self, factors: Factors, start_time: datetime) -> None:
        self._factors = factors
        self._start_time = Timestamp()
        self._start_time.FromDatetime(start_time)

    async def GetServerInfo(self, request: v1.GetServerInfoRequest, context: Context) -> v1.GetServerInfoResponse:
        """Returns what a client can know about the server."""
        call = current_call.get()
        return v1.GetServerInfoResponse(
            version=version("wattwise"),
            role=v1.Role.Value(f"ROLE_{call.role}") if call and call.role else v1.ROLE_ANYONE,
            token_id=call.token_id if call else "",
            job_id_prefix=call.reach if call else "",
            factors=answers.message(v1.Factors, self._factors),
            start_time=self._start_time,
        )
